// Package brokertest is the conformance suite of package broker: every rule
// that a Sink and a Source must keep is a [Case], which returns an error that
// names the broken rule. Adapters run it against a real server with [Run].
package brokertest

import (
	"context"
	"errors"
	"fmt"
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
	// Log returns everything that the topic holds, in the order of acceptance
	// per key. It must not use the code under test.
	Log func(ctx context.Context) ([]postrider.Message, error)
	// Cut breaks the sink's connections n bytes after the next ones were sent
	// and refuses new ones until Restore. nil: faults cannot be made.
	Cut     func(n int)
	Restore func()
	// Source opens a receiver of Topic for the one named consumer of this Env;
	// closing it is what the end of a process is. nil: no source.
	Source func(ctx context.Context) (src broker.Source, close func(), err error)
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
func Cases() []Case { return append(sinkCases(), sourceCases()...) }

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

// Check runs one case within a minute and returns what it found.
func Check(ctx context.Context, c Case, env *Env) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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
