// Package brokertest is the conformance suite of package broker: every rule
// that a Sink and a Source must keep is a [Case], which returns an error that
// names the broken rule. Adapters run it against a real server with [Run]. README.md
// says which known bug each case would have found.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
)

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
	return slices.Concat(sinkCases(), dataCases(), faultCases(), lineCases(), operatorCases(), sourceCases(), memberCases(), givebackCases())
}

// Run runs every case as a subtest on an Env of its own, several at a time: most
// of a case's time is waiting. It returns when all have ended.
func Run(t *testing.T, newEnv func(t *testing.T) *Env) {
	t.Helper()
	groups := make(map[string][]Case)
	for _, c := range Cases() {
		group, _, _ := strings.Cut(c.Name, "/")
		groups[group] = append(groups[group], c)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		t.Run(group, func(t *testing.T) {
			for _, c := range groups[group] {
				_, name, _ := strings.Cut(c.Name, "/")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if err := Check(t.Context(), c, newEnv(t)); errors.Is(err, ErrNotApplicable) {
						t.Skip(err)
					} else if err != nil {
						t.Error(err)
					}
				})
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
