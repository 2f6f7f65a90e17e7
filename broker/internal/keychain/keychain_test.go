package keychain_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain"
)

func batch(keys string) (msgs []postrider.Message) {
	for _, key := range strings.Split(keys, "") {
		msgs = append(msgs, postrider.Message{Key: strings.Trim(key, "-")})
	}
	return msgs
}

func TestOf(t *testing.T) {
	for keys, want := range map[string]string{
		"a":      "0",
		"aaa":    "0 1 2",
		"abab":   "0 2|1 3",
		"a-a-":   "0 2|1|3",
		"--":     "0|1",
		"abcbac": "0 4|1 3|2 5",
	} {
		c, first := keychain.Of(batch(keys))
		var chains []string
		for _, i := range first {
			chain := fmt.Sprint(i)
			for n := c.Next(i); n > 0; n = c.Next(n) {
				chain += fmt.Sprint(" ", n)
			}
			chains = append(chains, chain)
		}
		if got := strings.Join(chains, "|"); got != want {
			t.Errorf("%s: got %s, want %s", keys, got, want)
		}
	}
	if c, first := keychain.Of(nil); len(c)+len(first) > 0 {
		t.Errorf("no messages: %v, %v", c, first)
	}
}

func TestBar(t *testing.T) {
	msgs := batch("aba-ab")
	c, _ := keychain.Of(msgs)
	errs := make([]error, len(msgs))
	c.Bar(0, errs, broker.Rejected(errors.New("too large"), "", "orders"))
	for i, want := range []bool{false, false, true, false, true, false} {
		if barred := errors.Is(errs[i], broker.ErrNotTried); barred != want {
			t.Errorf("message %d: %v", i, errs[i])
		}
	}
	if e := broker.Classify(errs[2]); e.Class != broker.ClassFailed || e.Destination != "orders" {
		t.Errorf("barred with %v", e)
	}
}

func TestBeginning(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	begin, stop := keychain.Beginning(ctx)
	defer stop()
	if end, ok := begin.Deadline(); !ok || time.Until(end) > 30*time.Minute || time.Until(end) < 29*time.Minute {
		t.Errorf("of an hour requests begin until %v", end)
	}
	endless, stopped := keychain.Beginning(t.Context())
	defer stopped()
	if _, ok := endless.Deadline(); ok {
		t.Error("a call without an end has a half")
	}
	if err := keychain.Late(); !errors.Is(err, broker.ErrNotTried) || broker.Classify(err).Class != broker.ClassUnknown {
		t.Errorf("late: %v", err)
	}
}
