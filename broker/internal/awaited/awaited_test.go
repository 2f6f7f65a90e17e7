package awaited

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
)

var errNone = errors.New("no subscription")

func never(t *testing.T) func(context.Context) error {
	t.Helper()
	return func(context.Context) error {
		t.Error("asked")
		return nil
	}
}

// TestReady: a topic that was missing is asked for until the answer is good, and not
// again. Other topics are not asked for.
func TestReady(t *testing.T) {
	t.Parallel()
	var topics Topics
	ctx := t.Context()
	if err := topics.Ready(ctx, "orders", never(t)); err != nil {
		t.Fatal(err)
	}
	topics.Missing("orders")
	asked := 0
	for range 3 {
		if err := topics.Ready(ctx, "orders", func(context.Context) error { asked++; return errNone }); !errors.Is(err, errNone) {
			t.Fatalf("without a subscription: %v", err)
		}
	}
	if err := topics.Ready(ctx, "invoices", never(t)); err != nil || asked != 3 {
		t.Fatalf("another topic: %v; asked %d times", err, asked)
	}
	for range 3 {
		if err := topics.Ready(ctx, "orders", func(context.Context) error { asked++; return nil }); err != nil {
			t.Fatalf("with a subscription: %v", err)
		}
	}
	if asked != 4 {
		t.Errorf("asked %d times, want 4", asked)
	}
}

// TestMissingMeanwhile: an answer to a question from before a topic was seen missing
// again is about another topic of that name.
func TestMissingMeanwhile(t *testing.T) {
	t.Parallel()
	var topics Topics
	topics.Missing("orders")
	asked := 0
	err := topics.Ready(t.Context(), "orders", func(context.Context) error {
		if asked++; asked == 1 {
			topics.Missing("orders")
			return nil
		}
		return errNone
	})
	if !errors.Is(err, errNone) || asked != 2 {
		t.Errorf("%v; asked %d times", err, asked)
	}
}

// TestShared: callers at the same time ask once. A question that its caller gave up is
// asked again by another one.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var topics Topics
		topics.Missing("orders")
		first, cancel := context.WithCancel(t.Context())
		asked, answer := 0, make(chan error)
		ask := func(ctx context.Context) error {
			asked++
			select {
			case err := <-answer:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := topics.Ready(first, "orders", ask); !errors.Is(err, context.Canceled) {
				t.Errorf("the caller that gave up: %v", err)
			}
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				if err := topics.Ready(t.Context(), "orders", ask); !errors.Is(err, errNone) {
					t.Errorf("a caller beside it: %v", err)
				}
			})
		}
		gone, leave := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := topics.Ready(gone, "orders", ask); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that did not wait: %v", err)
			}
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		cancel()
		synctest.Wait()
		answer <- errNone
		wg.Wait()
		if asked != 2 {
			t.Errorf("asked %d times, want 2", asked)
		}
	})
}

// TestBound: of too many missing topics the first is forgotten, unless it was seen missing again.
func TestBound(t *testing.T) {
	t.Parallel()
	var topics Topics
	for n := range most {
		topics.Missing(strconv.Itoa(n))
	}
	topics.Missing("0")
	topics.Missing("one more")
	none := func(context.Context) error { return errNone }
	for name, held := range map[string]bool{"0": true, "1": false, "2": true, "one more": true} {
		if err := topics.Ready(t.Context(), name, none); (err != nil) != held {
			t.Errorf("topic %s: %v", name, err)
		}
	}
	if n := topics.held.Load(); n != most {
		t.Errorf("%d topics are remembered", n)
	}
}

// TestAPanicIsNoAnswer: a relay survives a panic of a call. Those who wait for its answer
// ask by themselves, and the topic is awaited until an answer is good.
func TestAPanicIsNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var topics Topics
		topics.Missing("orders")
		panicked := make(chan any)
		begun := make(chan struct{})
		finish := make(chan struct{})
		go func() {
			defer func() { panicked <- recover() }()
			_ = topics.Ready(t.Context(), "orders", func(context.Context) error {
				close(begun)
				<-finish
				panic("a bug")
			})
		}()
		<-begun
		waited := make(chan error)
		go func() {
			waited <- topics.Ready(t.Context(), "orders", func(context.Context) error { return errNone })
		}()
		synctest.Wait()
		close(finish)
		if v := <-panicked; v != "a bug" {
			t.Errorf("the panic became %v", v)
		}
		if err := <-waited; !errors.Is(err, errNone) {
			t.Errorf("who waited got %v", err)
		}
		if err := topics.Ready(t.Context(), "orders", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
