package daemon

import (
	"errors"
	"strings"
	"testing"
)

// A process of several relays ends when all of them wait after a failure, and not
// while one tries again: that one may wait for a database that comes back.
func TestFleetEndsWhenNobodyTries(t *testing.T) {
	a, b := &unit{name: "a"}, &unit{name: "b"}
	f := &fleet{units: []*unit{a, b}, failed: map[*unit]error{}}
	refused := errors.New("refused")
	f.tries(a)
	f.tries(b)
	if f.fails(a, refused) {
		t.Error("over although b runs")
	}
	f.tries(a)
	if f.fails(b, refused) || f.verdict() != nil {
		t.Error("over although a tries again")
	}
	if !f.fails(a, refused) {
		t.Error("both wait, and the process goes on")
	}
	f.tries(b)
	if err := f.verdict(); err == nil || strings.Count(err.Error(), "refused") != 2 {
		t.Errorf("%v does not say why each ended", err)
	}
}
