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
// the Env does not have. [Run] takes it only for cases that Env.Without names.
var ErrNotApplicable = errors.New("not applicable")

// Cases returns the whole suite.
func Cases() []Case {
	return slices.Concat(sinkCases(), dataCases(), faultCases(), lineCases(), operatorCases(), sourceCases(), memberCases(), givebackCases())
}

// Run runs every case as a subtest on an Env of its own, several at a time: most
// of a case's time is waiting. It returns when all have ended. What ran on
// Env.Server must be what docs/conformance.md says.
func Run(t *testing.T, newEnv func(t *testing.T) *Env) {
	t.Helper()
	runCases(t, Cases(), newEnv, inRealTime)
}

// RunSome is Run of the cases of these names, "source/" for all of a group: what
// a setting changes. All others count as cases that the run does not have.
func RunSome(t *testing.T, names []string, newEnv func(t *testing.T) *Env) {
	t.Helper()
	some, err := named(names)
	if err != nil {
		t.Fatal(err)
	}
	runCases(t, some, newEnv, inRealTime)
}

// named finds cases.
func named(names []string) (some []Case, err error) {
	for _, name := range names {
		before := len(some)
		for _, c := range Cases() {
			if covers(name, c.Name) {
				some = append(some, c)
			}
		}
		if len(some) == before {
			return nil, fmt.Errorf("there is no case %s", name)
		}
	}
	return some, nil
}

// covers reports whether name is that of a case or of its group.
func covers(name, of string) bool {
	return name == of || strings.HasSuffix(name, "/") && strings.HasPrefix(of, name)
}

func inRealTime(t *testing.T, test func(t *testing.T)) { t.Helper(); test(t) }

func runCases(t *testing.T, cases []Case, newEnv func(t *testing.T) *Env, in func(*testing.T, func(*testing.T))) {
	t.Helper()
	groups := make(map[string][]Case)
	for _, c := range cases {
		group, _, _ := strings.Cut(c.Name, "/")
		groups[group] = append(groups[group], c)
	}
	got := &report{cases: cases, reasons: make(map[string]string)}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		t.Run(group, func(t *testing.T) {
			for _, c := range groups[group] {
				_, name, _ := strings.Cut(c.Name, "/")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					in(t, func(t *testing.T) { runCase(t, c, newEnv(t), got) })
				})
			}
		})
	}
	if t.Failed() {
		return
	}
	if err := got.check(); err != nil {
		t.Error(err)
	}
}

func runCase(t *testing.T, c Case, env *Env, got *report) {
	t.Helper()
	err := Check(t.Context(), c, env)
	why, ok := env.without(c.Name)
	if ok {
		t.Log("does not apply: " + why)
	}
	if err := env.judge(c.Name, err); err != nil {
		t.Error(err)
		return
	}
	got.note(env.Server, c.Name, why)
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

// without returns why a case does not apply to the broker, if its test says so.
func (e *Env) without(name string) (why string, ok bool) {
	group, _, _ := strings.Cut(name, "/")
	if why, ok = e.Without[group+"/"]; !ok {
		why, ok = e.Without[name]
	}
	return why, ok
}

// judge turns the answer of a case into the verdict of Run: what does not apply
// is what Without names, no more and no less.
func (e *Env) judge(name string, err error) error {
	for known := range e.Without {
		if !slices.ContainsFunc(Cases(), func(c Case) bool {
			return covers(known, c.Name)
		}) {
			return fmt.Errorf("Env.Without names %q: there is no such case", known)
		}
	}
	_, named := e.without(name)
	switch none := errors.Is(err, ErrNotApplicable); {
	case none && !named:
		return fmt.Errorf("%w: fill in what it needs, or name the case in Env.Without with the reason", err)
	case none:
		return nil
	case named:
		return fmt.Errorf("%s applies (it found: %v), and Env.Without says that it does not", name, err)
	}
	return err
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
