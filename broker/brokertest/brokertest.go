// Package brokertest is the conformance suite of package broker: every rule
// that a Sink and a Source must keep is a [Case], which returns an error that
// names the broken rule. Adapters run it against a real server with [Run].
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// Env is a broker under test. Each case gets a fresh one: its topic is empty
// and its consumers have received nothing.
type Env struct {
	// Sink is the sink under test; Topic exists and is empty.
	Sink  broker.Sink
	Topic string
	// Missing is a topic that does not exist; "" if every topic does.
	Missing string
	// TooLarge is a payload size that the broker refuses; 0: there is none.
	TooLarge int
	// Largest is a payload size that the broker must take, near its limit.
	Largest int
	// Log returns everything that the topic holds, in the order of acceptance
	// per key. It must not use the code under test.
	Log func(ctx context.Context) ([]postrider.Message, error)
	// Faults breaks what is between Sink and the broker. nil: it cannot be done.
	Faults Faults
	// Second is the sink of another process, which Faults does not touch; nil:
	// there can be none.
	Second broker.Sink
	// Stop ends the process of Sink, as far as the sink can see: its client is
	// closed. nil: it has none.
	Stop func()
	// Source opens a receiver of Topic for the one named consumer of this Env;
	// closing it is what the end of a process is. nil: no source.
	Source func(ctx context.Context) (src broker.Source, close func(), err error)
	// Mortal is Source, but its end is that of a process that was killed: the
	// broker is not told. nil: it cannot be done.
	Mortal func(ctx context.Context) (src broker.Source, kill func(), err error)
	// Shared says that each of several sources of one name gets a part of the log.
	Shared bool
}

// Faults breaks connections. New connections are refused or muted like those
// that exist, until Restore ends everything.
type Faults interface {
	// Cut breaks the connections after n more bytes of requests.
	Cut(n int)
	// CutAnswer breaks the connections after n more bytes of answers.
	CutAnswer(n int)
	// Mute keeps back all answers: the connections are half-open.
	Mute()
	// Freeze keeps back requests and answers: the broker accepts connections
	// and does nothing.
	Freeze()
	// Restore ends the fault. What was kept back flows on.
	Restore()
}

// Case is one rule.
type Case struct {
	Name    string
	Promise string
	Run     func(ctx context.Context, env *Env) error
}

// ErrNotApplicable is matched by the answer of a case that needs something that
// the Env does not have.
var ErrNotApplicable = errors.New("not applicable")

// Cases returns the whole suite.
func Cases() []Case {
	return slices.Concat(sinkCases(), dataCases(), faultCases(), sourceCases(), memberCases())
}

// Run runs every case as a subtest on an Env of its own.
func Run(t *testing.T, newEnv func(t *testing.T) *Env) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if err := Check(t.Context(), c, newEnv(t)); errors.Is(err, ErrNotApplicable) {
				t.Skip(err)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// Check runs one case within two minutes and returns what it found.
func Check(ctx context.Context, c Case, env *Env) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := c.Run(ctx, env); err != nil {
		return fmt.Errorf("%s: rule %q: %w", c.Name, c.Promise, err)
	}
	return nil
}

func notApplicable(why string) error { return fmt.Errorf("%w: %s", ErrNotApplicable, why) }

// messages makes n messages over keys, versions counting per key.
func messages(topic string, n, keys int) []postrider.Message {
	msgs := make([]postrider.Message, n)
	for i := range msgs {
		msgs[i] = postrider.Message{
			ID: id(i), Topic: topic, Key: fmt.Sprintf("ключ-%d", i%keys), Type: "test.happened",
			Payload: fmt.Appendf(nil, "payload %d", i), ContentType: "text/plain",
			Version: int64(i/keys + 1), Time: time.Date(2026, 1, 2, 3, 4, 5, i, time.UTC),
		}
	}
	return msgs
}

func id(n int) string { return fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", n) }
