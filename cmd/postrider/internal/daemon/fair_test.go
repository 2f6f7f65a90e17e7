package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
)

// slowSink answers when it is told to.
type slowSink struct {
	broker.Sink
	begun  chan struct{}
	answer chan []error
}

func (s *slowSink) Deliver(context.Context, broker.Batch) []error {
	s.begun <- struct{}{}
	return <-s.answer
}

// Of the calls of one relay few begin at once; one that waits for its broker does
// not keep the others from beginning, and one that gave up has sent nothing.
func TestFairSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowSink{begun: make(chan struct{}, 10), answer: make(chan []error)}
		s := newFairSink(slow)
		for range 5 {
			go s.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{}}})
		}
		synctest.Wait()
		if n := len(slow.begun); n != fairCalls {
			t.Errorf("%d calls begin at once, want %d", n, fairCalls)
		}
		ctx, cancel := context.WithTimeout(t.Context(), fairAfter/2)
		defer cancel()
		errs := s.Deliver(ctx, broker.Batch{Messages: []postrider.Message{{}, {}}})
		if len(errs) != 2 || broker.Classify(errs[1]).Class != broker.ClassOutage {
			t.Errorf("a call without a turn answers %v", errs)
		}
		time.Sleep(fairAfter) // of the bubble: no time passes
		synctest.Wait()
		if n := len(slow.begun); n != 2*fairCalls {
			t.Errorf("%d calls have begun while the first wait for the broker, want %d", n, 2*fairCalls)
		}
		slow.answer <- nil // it gave its turn back already
		slow.answer <- nil
		time.Sleep(fairAfter)
		synctest.Wait()
		if n := len(slow.begun); n != 5 {
			t.Errorf("%d of 5 calls have begun", n)
		}
		for range 3 {
			slow.answer <- nil
		}
	})
}

func TestShareLimits(t *testing.T) {
	for relays, want := range map[int]relay.Options{
		1:   {PollMax: defaultPollMax, LeaseTTL: defaultLeaseTTL},
		4:   {PollMax: defaultPollMax, LeaseTTL: defaultLeaseTTL},
		8:   {PollMax: defaultPollMax, LeaseTTL: defaultLeaseTTL, MaxBytes: 8 << 20, MaxMessages: 12288},
		20:  {PollMax: 100 * time.Millisecond, LeaseTTL: 5 * time.Second, MaxBytes: 64 << 20 / 20, MaxMessages: 98304 / 20},
		100: {PollMax: 500 * time.Millisecond, LeaseTTL: 10 * time.Second, MaxBytes: 2 << 20, MaxMessages: 2048},
	} {
		var e Engine
		o := optionsOf(t, &e, nil)
		e.shareLimits(o, relays, 0)
		if o.PollMax != want.PollMax || o.LeaseTTL != want.LeaseTTL || o.MaxBytes != want.MaxBytes || o.MaxMessages != want.MaxMessages {
			t.Errorf("%d relays: %v, %v, %d bytes, %d messages", relays, o.PollMax, o.LeaseTTL, o.MaxBytes, o.MaxMessages)
		}
	}
	var e Engine
	o := optionsOf(t, &e, nil)
	if e.shareLimits(o, 5, 9000); o.MaxMessages != 9000 {
		t.Errorf("of 5 relays one holds %d messages, more than keep its sink busy", o.MaxMessages)
	}
	for _, flags := range []map[string]string{
		{"lease-ttl": "1s", "poll-max": "1s"},
		{"lease-ttl": defaultLeaseTTL.String(), "poll-max": defaultPollMax.String()}, // the default can be a choice
	} {
		var e Engine
		o := optionsOf(t, &e, flags)
		ttl, poll := o.LeaseTTL, o.PollMax
		if e.shareLimits(o, 50, 0); o.PollMax != poll || o.LeaseTTL != ttl {
			t.Errorf("%v and %v, which somebody chose, became %v and %v", poll, ttl, o.PollMax, o.LeaseTTL)
		}
	}
}

// optionsOf returns those of an engine with these flags.
func optionsOf(t *testing.T, e *Engine, flags map[string]string) *relay.Options {
	t.Helper()
	fs := pflag.NewFlagSet("relay", pflag.ContinueOnError)
	e.Flags(fs)
	for name, value := range flags {
		if err := fs.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	o, err := e.options()
	if err != nil {
		t.Fatal(err)
	}
	return o
}
