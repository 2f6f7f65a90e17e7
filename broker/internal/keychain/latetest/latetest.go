// Package latetest tests that a sink begins no request late in its call.
package latetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// Service is a service that holds the answer to its first request.
type Service struct {
	Sink   broker.Sink   // has room for one request
	Asked  chan struct{} // closed by the first request
	Answer chan struct{} // closed to answer it
	Sent   func() int    // requests so far
}

// Run requires that a call that gets no room for a request in the first half of its time
// begins none in the second, and that what it did not send counts as not tried.
func Run(t *testing.T, s Service, first, second []postrider.Message) {
	t.Helper()
	got := make(chan []error, 1)
	go func() { got <- s.Sink.Deliver(t.Context(), broker.Batch{Messages: first}) }()
	<-s.Asked
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	end, _ := ctx.Deadline()
	errs := s.Sink.Deliver(ctx, broker.Batch{Messages: second})
	if left := time.Until(end); left < time.Second {
		t.Errorf("the call waited until %v before its end", left)
	}
	if len(errs) != len(second) {
		t.Errorf("%d answers to %d messages", len(errs), len(second))
	}
	for i, err := range errs {
		if !errors.Is(err, broker.ErrNotTried) || broker.Classify(err).Class != broker.ClassUnknown {
			t.Errorf("message %d: %v", i, err)
		}
	}
	close(s.Answer)
	if errs := <-got; errs != nil {
		t.Error(errs)
	}
	if n := s.Sent(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}
