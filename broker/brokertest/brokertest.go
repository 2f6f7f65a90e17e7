// Package brokertest is the conformance suite of package broker: every rule
// that a Sink and a Source must keep is a [Case], which returns an error that
// names the broken rule. Adapters run it against a real server with [Run]. README.md
// lists the known bugs that each case would have found.
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

// ErrNotApplicable is the error of a case that needs a field which
// the Env leaves empty. [Run] accepts it only for cases that Env.Without names.
var ErrNotApplicable = errors.New("not applicable")

// Cases returns the whole suite.
func Cases() []Case {
	return slices.Concat(sinkCases(), dataCases(), faultCases(), lineCases(), operatorCases(), sourceCases(), memberCases(), givebackCases())
}

// Run runs every case as a subtest on an Env of its own, several at a time, because a
// case mostly waits. It returns when all have ended. The cases that ran on
// Env.Server must match docs/conformance.md.
func Run(t *testing.T, newEnv func(t *testing.T) *Env) {
	t.Helper()
	runCases(t, Cases(), newEnv, inRealTime)
}

// RunSome runs only the named cases, "source/" for a whole group, to test
// a setting that affects them.
func RunSome(t *testing.T, names []string, newEnv func(t *testing.T) *Env) {
	t.Helper()
	some, err := named(names)
	if err != nil {
		t.Fatal(err)
	}
	runCases(t, some, newEnv, inRealTime)
}

// named returns the cases with these names.
func named(names []string) (some []Case, err error) {
	for _, name := range names {
		before := len(some)
		for _, c := range Cases() {
			if covers(name, c.Name) {
				some = append(some, c)
			}
		}
		if len(some) == before {
			return nil, fmt.Errorf("unknown case %s", name)
		}
	}
	return some, nil
}

// covers reports whether of is the case name, or belongs to the group name.
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

// Check runs one case within five minutes and returns the broken rule as an error.
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

// judge turns the result of a case into the verdict of Run: exactly the cases in Without
// must not apply.
func (e *Env) judge(name string, err error) error {
	for known := range e.Without {
		if !slices.ContainsFunc(Cases(), func(c Case) bool {
			return covers(known, c.Name)
		}) {
			return fmt.Errorf("Env.Without names %q, which does not exist", known)
		}
	}
	_, named := e.without(name)
	switch none := errors.Is(err, ErrNotApplicable); {
	case none && !named:
		return fmt.Errorf("%w: fill in what it needs, or name the case in Env.Without with the reason", err)
	case none:
		return nil
	case named:
		return fmt.Errorf("%s applies (result: %v) although Env.Without names it", name, err)
	}
	return err
}

func notApplicable(why string) error { return fmt.Errorf("%w: %s", ErrNotApplicable, why) }

// messages returns n messages over keys, with versions per key.
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
