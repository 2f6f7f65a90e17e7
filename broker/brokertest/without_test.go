package brokertest

import (
	"errors"
	"testing"
)

// TestWithout: exactly the cases in Env.Without do not apply.
func TestWithout(t *testing.T) {
	found := errors.New("a broken rule")
	for _, c := range []struct {
		name    string
		without map[string]string
		answer  error
		fails   bool
	}{
		{"kept", nil, nil, false},
		{"broken", nil, found, true},
		{"not applicable, unnamed", nil, notApplicable("no dedup"), true},
		{"not applicable, named", map[string]string{"sink/dedup": "no dedup"}, notApplicable("no dedup"), false},
		{"not applicable, its group named", map[string]string{"sink/": "no sink"}, notApplicable("no dedup"), false},
		{"another one named", map[string]string{"sink/full": "never full"}, notApplicable("no dedup"), true},
		{"named and kept", map[string]string{"sink/dedup": "no dedup"}, nil, true},
		{"named and broken", map[string]string{"sink/dedup": "no dedup"}, found, true},
		{"no such case", map[string]string{"sink/dedupe": "no dedup"}, nil, true},
		{"no such group", map[string]string{"sinks/": "no dedup"}, nil, true},
	} {
		if err := (&Env{Without: c.without}).judge("sink/dedup", c.answer); (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
