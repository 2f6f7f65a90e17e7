package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
		o := relay.Options{PollMax: defaultPollMax, LeaseTTL: defaultLeaseTTL}
		shareLimits(&o, relays, 0)
		if o.PollMax != want.PollMax || o.LeaseTTL != want.LeaseTTL || o.MaxBytes != want.MaxBytes || o.MaxMessages != want.MaxMessages {
			t.Errorf("%d relays: %v, %v, %d bytes, %d messages", relays, o.PollMax, o.LeaseTTL, o.MaxBytes, o.MaxMessages)
		}
	}
	o := relay.Options{PollMax: time.Second, LeaseTTL: time.Second}
	if shareLimits(&o, 5, 9000); o.MaxMessages != 9000 {
		t.Errorf("of 5 relays one holds %d messages, more than keep its sink busy", o.MaxMessages)
	}
	if shareLimits(&o, 50, 0); o.PollMax != time.Second || o.LeaseTTL != time.Second {
		t.Errorf("what somebody chose became %v and %v", o.PollMax, o.LeaseTTL)
	}
}
