// Package inboxtest is the conformance suite of package inbox on a database:
// every rule that a dialect and a driver must keep is a [Case], which returns an
// error that says what was seen. A database proves itself in the tests of its
// adapter:
//
//	func TestInbox(t *testing.T) {
//		inboxtest.Run(t, func(t *testing.T) *inboxtest.Env { return newEnv(t) })
//	}
package inboxtest

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
	"github.com/postrider/postrider/inbox"
)

// Case is one rule.
type Case struct {
	Name    string // "claim/waits"
	Promise string // the rule, as a sentence
	Run     func(ctx context.Context, env *Env) error
}

// ErrNotApplicable is matched by the answer of a case that needs something that
// the Env does not have. [Run] takes it only for cases that Env.Without names.
var ErrNotApplicable = errors.New("not applicable")

// Cases returns the whole suite.
func Cases() []Case {
	return slices.Concat(onceCases(), claimCases(), batchCases(), resultCases(), orderCases(), stashCases(), gapCases(),
		attemptCases(), deadCases(), outcomeCases(), pruneCases(), schemaCases(), crashCases(), historyCases())
}

// Run runs every case as a subtest on an Env of its own.
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
					env := newEnv(t)
					err := Check(t.Context(), c, env)
					why, named := env.Without[c.Name]
					switch none := errors.Is(err, ErrNotApplicable); {
					case none && named:
						t.Log("does not apply: " + why)
					case none:
						t.Errorf("%v: fill in what it needs, or name the case in Env.Without with the reason", err)
					case named:
						t.Errorf("it applies (it found: %v), and Env.Without says that it does not", err)
					case err != nil:
						t.Error(err)
					}
				})
			}
		})
	}
}

// Check runs one case within five minutes and returns what it found.
func Check(ctx context.Context, c Case, env *Env) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := c.Run(ctx, env); err != nil {
		return fmt.Errorf("%s: rule %q: %w", c.Name, c.Promise, err)
	}
	return nil
}

func notApplicable(why string) error { return fmt.Errorf("%w: %s", ErrNotApplicable, why) }

const consumer = "billing"

// message is a version of a key, with everything that a message can have.
func message(key string, version int64) postrider.Message {
	return postrider.Message{
		ID: fmt.Sprintf("%s-%d", key, version), Topic: "orders", Key: key, Type: "order.changed",
		Payload: fmt.Appendf(nil, "%s at %d", key, version), ContentType: "text/plain", Version: version,
	}
}

// messages are the versions from first to last of a key.
func messages(key string, first, last int64) (out []postrider.Message) {
	for v := first; v <= last; v++ {
		out = append(out, message(key, v))
	}
	return out
}

// act is the effect of a message.
func act(ctx context.Context, env *Env, tx inbox.Conn, m *postrider.Message) error {
	return env.Act(ctx, tx, m.Key, m.Version)
}

// acts wants the effects to be these, "key version" each, in the order in which
// they happened.
func (e *Env) acts(ctx context.Context, want ...string) error {
	got, err := e.Acts(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the effects are %q, want %q", got, want)
	}
	return nil
}

// seq are the effects of the versions from first to last of a key.
func seq(key string, first, last int64) (out []string) {
	for v := first; v <= last; v++ {
		out = append(out, fmt.Sprintf("%s %d", key, v))
	}
	return out
}
