package consumer

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// script is a source whose Receive returns one scripted batch per call.
type script struct {
	mu       sync.Mutex
	batches  chan []broker.Delivery
	verdicts []string
	extended int
}

func (s *script) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "script", AckWait: 30 * time.Second}
}

func (s *script) Receive(ctx context.Context, _ int) ([]broker.Delivery, error) {
	select {
	case b := <-s.batches:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *script) Settle(_ context.Context, vs []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vs {
		word := "back "
		if v.Ack {
			word = "ack "
		}
		s.verdicts = append(s.verdicts, word+v.Delivery.Message.ID)
	}
	return nil
}

func (s *script) Extend(context.Context, []broker.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extended++
	return nil
}

func delivery(id, key string) broker.Delivery {
	return broker.Delivery{Message: postrider.Message{ID: id, Topic: "t", Key: key}}
}

// start runs a run of src until the returned function is called, which returns
// what Run returned.
func start(src broker.Source, opts *Options, process func(context.Context, broker.Delivery) broker.Verdict) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- newRun(src, opts.defaults(), beside(process)).run(ctx) }()
	return func() error { cancel(); return <-done }
}

// beside returns a processor that never asks to run alone.
func beside(process func(context.Context, broker.Delivery) broker.Verdict) processor {
	return func(ctx context.Context, d broker.Delivery, _ turn) (broker.Verdict, bool) {
		return process(ctx, d), false
	}
}

// Promises: O
func TestNothingOvertakesAHeadGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		failed := false
		var ran []string
		stop := start(src, nil, func(_ context.Context, d broker.Delivery) broker.Verdict {
			ran = append(ran, d.Message.ID)
			if d.Message.ID == "1" && !failed {
				failed = true
				return broker.Verdict{Delivery: d, Delay: time.Second}
			}
			return broker.Verdict{Delivery: d, Ack: true}
		})
		src.batches <- []broker.Delivery{delivery("1", "k"), delivery("2", "k")}
		synctest.Wait() // 1 failed and both were given back; the next Receive had begun before
		src.batches <- []broker.Delivery{delivery("3", "k")}
		synctest.Wait()
		src.batches <- []broker.Delivery{delivery("1", "k"), delivery("2", "k"), delivery("3", "k")}
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if want := []string{"1", "1", "2", "3"}; !slices.Equal(ran, want) {
			t.Errorf("ran %q, want %q", ran, want)
		}
		want := []string{"back 1", "back 2", "back 3", "ack 1", "ack 2", "ack 3"}
		if !slices.Equal(src.verdicts, want) {
			t.Errorf("verdicts %q, want %q", src.verdicts, want)
		}
	})
}

func TestShutdownFinishesWhatRunsAndGivesBackTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		stop := start(src, &Options{DrainTimeout: time.Minute}, func(ctx context.Context, d broker.Delivery) broker.Verdict {
			pause(ctx, 45*time.Second)
			return broker.Verdict{Delivery: d, Ack: ctx.Err() == nil}
		})
		src.batches <- []broker.Delivery{delivery("1", "k"), delivery("2", "k")}
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if want := []string{"ack 1", "back 2"}; !slices.Equal(src.verdicts, want) {
			t.Errorf("verdicts %q, want %q", src.verdicts, want)
		}
		if src.extended < 3 {
			t.Errorf("extended %d times in 45 s of an ack wait of 30 s", src.extended)
		}
	})
}

func TestHandlerThatDoesNotListenIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		free := make(chan struct{})
		stop := start(src, &Options{Name: "c"}, func(_ context.Context, d broker.Delivery) broker.Verdict {
			<-free
			return broker.Verdict{Delivery: d}
		})
		src.batches <- []broker.Delivery{delivery("1", "k")}
		synctest.Wait()
		if err := stop(); err == nil {
			t.Error("Run returned nil while a handler was still running")
		}
		close(free)
		synctest.Wait()
	})
}

func TestDelaysGrowToTheirBound(t *testing.T) {
	o := (&Options{BackoffMin: time.Second, BackoffMax: time.Minute}).defaults()
	c := &Consumer[struct{}]{opts: o}
	for n, most := range map[int]time.Duration{1: time.Second, 3: 4 * time.Second, 100: time.Minute} {
		if d := c.backoff(n); d < most/2 || d > most {
			t.Errorf("delay after attempt %d is %v, want %v to %v", n, d, most/2, most)
		}
	}
	if Permanent(nil) != nil || !errors.Is(Permanent(context.Canceled), context.Canceled) {
		t.Error("Permanent hides or invents an error")
	}
}

// TestBytesInHand: large messages reach the limit in bytes before the limit in number. A
// message above the limit is received alone. Small messages after them are limited
// by number again.
func TestBytesInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 16 << 20
		src := &sized{}
		for range 60 {
			src.sizes = append(src.sizes, 1<<20)
		}
		src.sizes = append(src.sizes, 2*limit)
		for range 2000 {
			src.sizes = append(src.sizes, 10)
		}
		var mu sync.Mutex
		inHand, most, many, handled := 0, 0, 0, 0
		given := 0
		src.give = func(n int) {
			mu.Lock()
			defer mu.Unlock()
			inHand, given = inHand+n, given+1
			most, many = max(most, inHand), max(many, given-handled)
		}
		src.take = func(n int) {
			mu.Lock()
			defer mu.Unlock()
			inHand, handled = inHand-n, handled+1
		}
		stop := start(src, &Options{Prefetch: 500, Concurrency: 4, PrefetchBytes: limit}, func(ctx context.Context, d broker.Delivery) broker.Verdict {
			pause(ctx, time.Second)
			return broker.Verdict{Delivery: d, Ack: true}
		})
		time.Sleep(time.Hour) // in the bubble
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if handled != len(src.sizes) || inHand != 0 {
			t.Errorf("%d of %d handled, %d bytes left", handled, len(src.sizes), inHand)
		}
		if most > limit+2*limit {
			t.Errorf("%d MiB in hand, the limit is %d and one message of %d", most>>20, limit>>20, 2*limit>>20)
		}
		if src.large > limit+1<<20 {
			t.Errorf("%d MiB of large messages in hand, the limit is %d", src.large>>20, limit>>20)
		}
		if many != 500 {
			t.Errorf("at most %d small messages were in hand, want 500", many)
		}
	})
}

// sized is a source of messages with given sizes. It returns as many as requested.
type sized struct {
	script
	sizes      []int
	next       int
	now, large int // bytes in hand of the first sixty messages, and their maximum
	give, take func(n int)
}

func (s *sized) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ds []broker.Delivery
	for ; s.next < len(s.sizes) && len(ds) < limit; s.next++ {
		n := s.sizes[s.next]
		d := delivery(strconv.Itoa(s.next), strconv.Itoa(s.next))
		d.Message.Payload = make([]byte, n)
		d.Token = n
		ds = append(ds, d)
		if s.give(n); s.next < 60 {
			s.now += n
			s.large = max(s.large, s.now)
		}
	}
	if len(ds) == 0 {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	return ds, nil
}

func (s *sized) Settle(_ context.Context, vs []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vs {
		n, _ := v.Delivery.Token.(int)
		if s.take(n); n == 1<<20 {
			s.now -= n
		}
	}
	return nil
}

func (s *sized) Extend(context.Context, []broker.Delivery) error { return nil }
