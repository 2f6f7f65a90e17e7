package inhand_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// receipt is of message n of a group.
type receipt struct{ n, poll int }

type held = inhand.Held[receipt]

var errBusy = errors.New("busy")

// service answers as a test tells it, and notes its requests.
type service struct {
	polls  chan []*held // closed: polls fail
	at     chan string  // if not nil, a request to hide waits until it is read
	answer map[string]error
	whole  map[string]error // of a request

	mu       sync.Mutex
	requests []string
	now, top int // requests to delete that are under way
}

func newService() *service {
	return &service{polls: make(chan []*held, 10), answer: make(map[string]error), whole: make(map[string]error)}
}

// message is of poll p, received now. Its group is its id's first letter, its number the digit.
func message(id string, p int) *held {
	return &held{
		Of: receipt{n: int(id[1] - '0'), poll: p}, Group: id[:1], Earliest: time.Now().Add(hidden), Latest: time.Now().Add(hidden),
		Delivery: broker.Delivery{Message: postrider.Message{ID: id}, Origin: "q#" + id},
	}
}

func messages(p int, all string) (out []*held) {
	for id := range strings.FieldsSeq(all) {
		out = append(out, message(id, p))
	}
	return out
}

const hidden = 30 * time.Second

func (s *service) queue(t *testing.T, change func(*inhand.Service[receipt])) *inhand.Queue[receipt] {
	t.Helper()
	of := inhand.Service[receipt]{
		Name: "testbroker", Time: hidden, MaxDelay: time.Minute, MaxHeld: 100, MaxBytes: 1 << 40, Closing: 2 * time.Second, Batch: 10, Parallel: 1,
		Poll: s.poll, Delete: s.delete, Hide: s.hide,
		Stale: func(held, next receipt) bool { return held.n >= next.n },
		Taken: func(lost, behind receipt) bool { return lost.poll == behind.poll },
	}
	if change != nil {
		change(&of)
	}
	q := inhand.NewQueue(of)
	t.Cleanup(func() { q.Close() })
	return q
}

func (s *service) note(request string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	return s.whole[request]
}

// taken returns the requests since the call before.
func (s *service) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.requests, ", ")
	s.requests = nil
	return all
}

func (s *service) poll(ctx context.Context, limit, room int) ([]*held, error) {
	_ = s.note(fmt.Sprintf("poll %d/%d", limit, room))
	select {
	case got, ok := <-s.polls:
		if !ok {
			return nil, errBusy
		}
		return got, nil
	case <-ctx.Done():
		return messages(9, "z1"), ctx.Err()
	}
}

func (s *service) delete(_ context.Context, batch []*held) ([]error, error) {
	s.mu.Lock()
	s.now++
	s.top = max(s.top, s.now)
	s.mu.Unlock()
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return s.answers("delete", batch)
}

func (s *service) hide(ctx context.Context, batch []*held, d time.Duration) ([]error, error) {
	if s.at != nil {
		select {
		case s.at <- "hide":
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.answers(fmt.Sprintf("hide %v", d), batch)
}

func (s *service) answers(what string, batch []*held) ([]error, error) {
	var names []string
	answers := make([]error, len(batch))
	for i, h := range batch {
		id := h.Delivery.Message.ID
		names, answers[i] = append(names, id), s.answer[id]
	}
	slices.Sort(names)
	return answers, s.note(what + " " + strings.Join(names, " "))
}

// receive returns what can be had within a second, and the ids of it.
func receive(t *testing.T, q *inhand.Queue[receipt], limit int) ([]broker.Delivery, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ds, err := q.Receive(ctx, limit)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.Message.ID)
	}
	return ds, strings.Join(ids, " ")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestQueueOrder: a group continues with the message behind a settled one, or with the one
// that was given back, never with a later one.
//
// Promises: O
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	const behind = "hide 0s a2 a3 a4"
	for name, c := range map[string]struct {
		verdict  broker.Verdict
		answer   map[string]error // to a1 and a2
		whole    map[string]error
		requests string
		fails    bool   // at first; a repetition without errors follows
		again    string // requests of the repetition
		next     string
	}{
		"acknowledged":                        {verdict: broker.Verdict{Ack: true}, requests: "delete a1", next: "a2"},
		"lost with its poll":                  {verdict: broker.Verdict{Ack: true}, answer: map[string]error{"a1": inhand.ErrLost}, requests: "delete a1", next: "a4"},
		"not acknowledged":                    {verdict: broker.Verdict{Ack: true}, answer: map[string]error{"a1": errBusy}, requests: "delete a1", fails: true, again: "delete a1", next: "a2"},
		"acknowledged without an answer":      {verdict: broker.Verdict{Ack: true}, whole: map[string]error{"delete a1": errBusy}, requests: "delete a1", fails: true, again: "delete a1", next: "a2"},
		"given back":                          {verdict: broker.Verdict{Delay: 5 * time.Second}, requests: behind + ", hide 5s a1"},
		"given back after a part of a second": {verdict: broker.Verdict{Delay: 1200 * time.Millisecond}, requests: behind + ", hide 2s a1"},
		"given back at once":                  {verdict: broker.Verdict{Delay: -5 * time.Second}, requests: behind + ", hide 0s a1"},
		"given back for long":                 {verdict: broker.Verdict{Delay: time.Hour}, requests: behind + ", hide 1m0s a1"},
		"given back when it is lost":          {verdict: broker.Verdict{}, answer: map[string]error{"a1": inhand.ErrLost, "a2": inhand.ErrLost}, requests: behind + ", hide 0s a1"},
		"later ones not given back":           {verdict: broker.Verdict{}, whole: map[string]error{behind: errBusy}, requests: behind, fails: true, again: behind + ", hide 0s a1"},
		"a later one not given back":          {verdict: broker.Verdict{}, answer: map[string]error{"a2": errBusy}, requests: behind, fails: true, again: "hide 0s a2, hide 0s a1"},
		"given back without an answer":        {verdict: broker.Verdict{}, answer: map[string]error{"a1": errBusy}, requests: behind + ", hide 0s a1", fails: true, again: "hide 0s a1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				q := s.queue(t, nil)
				q.Add(messages(1, "a1 a2 b1 a3")...)
				q.Add(messages(2, "a4")...)
				ds, ids := receive(t, q, 10)
				equal(t, "received", ids, "a1 b1")
				c.verdict.Delivery = ds[0]
				if c.answer != nil {
					s.answer = c.answer
				}
				s.whole = c.whole
				err := q.Settle(t.Context(), []broker.Verdict{c.verdict})
				equal(t, "requests", s.taken(), c.requests)
				if errors.Is(err, errBusy) != c.fails {
					t.Errorf("settled: %v", err)
				}
				if c.fails {
					_, ids = receive(t, q, 10)
					equal(t, "received before the repetition", ids, "")
					s.taken()
					s.answer, s.whole = nil, nil
					must(t, q.Settle(t.Context(), []broker.Verdict{c.verdict}))
					equal(t, "requests of the repetition", s.taken(), c.again)
				}
				if c.next == "" { // the service has the group
					s.polls <- messages(3, "a1 a2")
					c.next = "a1"
				}
				_, ids = receive(t, q, 10)
				equal(t, "received next", ids, c.next)
			})
		})
	}
}

// TestQueueRenews: a message that has waited is extended before it is handed out. One
// that is not ours any more is dropped.
func TestQueueRenews(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits    time.Duration
		unsure   time.Duration // between earliest and latest
		answer   map[string]error
		requests string
		received string
	}{
		"fresh":                 {received: "a1 b1"},
		"a third of its time":   {waits: 10 * time.Second, received: "a1 b1"},
		"longer":                {waits: 11 * time.Second, requests: "hide 30s a1 b1", received: "a1 b1"},
		"not extended":          {waits: 29 * time.Second, answer: map[string]error{"a1": errBusy}, requests: "hide 30s a1 b1", received: "a1 b1"},
		"lost":                  {waits: 29 * time.Second, answer: map[string]error{"a1": inhand.ErrLost}, requests: "hide 30s a1 b1", received: "b1"},
		"maybe visible":         {waits: 30 * time.Second, unsure: 5 * time.Second, requests: "hide 30s a1 b1", received: "a1 b1"},
		"maybe, and no answer":  {waits: 30 * time.Second, unsure: 5 * time.Second, answer: map[string]error{"a1": errBusy}, requests: "hide 30s a1 b1", received: "b1"},
		"certainly visible":     {waits: 30 * time.Second},
		"certainly, after both": {waits: 35 * time.Second, unsure: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				s.answer = c.answer
				q := s.queue(t, nil)
				got := messages(1, "a1 a2 b1")
				for _, h := range got {
					h.Latest = h.Earliest.Add(c.unsure)
				}
				q.Add(got...)
				time.Sleep(c.waits)
				_, ids := receive(t, q, 10)
				equal(t, "received", ids, c.received)
				polled := ""
				if c.received == "" {
					polled = "poll 10/100"
				}
				equal(t, "requests", s.taken(), c.requests+polled)
			})
		})
	}
}

// TestQueueExtends: while a handler works, its message and what waits behind it stay hidden.
// Without Extend the later ones are dropped when their time is over.
func TestQueueExtends(t *testing.T) {
	t.Parallel()
	for extends, next := range map[bool]string{true: "a2", false: ""} {
		t.Run(fmt.Sprint(extends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				q := s.queue(t, nil)
				q.Add(messages(1, "a1 a2")...)
				ds, _ := receive(t, q, 10)
				for range 10 {
					time.Sleep(15 * time.Second)
					if extends {
						must(t, q.Extend(t.Context(), ds))
						equal(t, "requests", s.taken(), "hide 30s a1 a2")
					}
				}
				must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}))
				equal(t, "requests", s.taken(), "delete a1")
				_, ids := receive(t, q, 10)
				equal(t, "received next", ids, next)
			})
		})
	}
}

// TestQueueClose: Close gives back the later messages of each group before its first,
// and what the last poll brought. It does not wait for longer than it may.
//
// Promises: O
func TestQueueClose(t *testing.T) {
	t.Parallel()
	const later, heads = "hide 0s a2 a3 c2", "hide 0s a1 b1 c1 z1"
	for name, c := range map[string]struct {
		whole    map[string]error
		silent   bool
		requests string
	}{
		"given back":                {requests: later + ", " + heads},
		"later ones not given back": {whole: map[string]error{later: errBusy}, requests: later},
		"no answer":                 {silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				s.whole = c.whole
				q := s.queue(t, nil)
				q.Add(messages(1, "a1 a2 b1 a3")...)
				ds, _ := receive(t, q, 10)
				_, _ = receive(t, q, 10) // begins a poll
				q.Add(messages(1, "c1 c2")...)
				s.taken()
				if c.silent {
					s.at = make(chan string)
				}
				begun := time.Now()
				if !q.Close() {
					t.Error("an open queue was closed already")
				}
				if took := time.Since(begun); took != map[bool]time.Duration{true: 2 * time.Second}[c.silent] {
					t.Errorf("closed after %v", took)
				}
				equal(t, "requests", s.taken(), c.requests)
				if q.Close() {
					t.Error("closed twice")
				}
				_, received := q.Receive(t.Context(), 1)
				settled := q.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}})
				for _, err := range []error{received, settled, q.Extend(t.Context(), ds)} {
					if err == nil || err.Error() != "testbroker: the source is closed" {
						t.Errorf("on a closed queue: %v", err)
					}
				}
				equal(t, "requests of a closed queue", s.taken(), "")
			})
		})
	}
}

// TestQueueReceivedAgain: a message that is received again, and what was behind it, is
// stale. Verdicts about the delivery before change nothing.
//
// Promises: O
func TestQueueReceivedAgain(t *testing.T) {
	t.Parallel()
	for again, c := range map[string]struct {
		extended, deleted string
		next              string
		poll              int // that brought it
	}{
		"a1 a2": {next: "a1", poll: 2},
		"a2":    {extended: "hide 30s a1 a2", deleted: "delete a1", next: "a2", poll: 2},
		"a3":    {extended: "hide 30s a1 a2 a3", deleted: "delete a1", next: "a2", poll: 1},
		"a4":    {extended: "hide 30s a1 a2 a3 a4", deleted: "delete a1", next: "a2", poll: 1},
	} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				q := s.queue(t, nil)
				q.Add(messages(1, "a1 a2 a3")...)
				first, _ := receive(t, q, 10)
				q.Add(messages(2, again)...)
				must(t, q.Extend(t.Context(), first))
				equal(t, "extended", s.taken(), c.extended)
				must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: first[0], Ack: true}}))
				equal(t, "deleted", s.taken(), c.deleted)
				next, ids := receive(t, q, 10)
				equal(t, "received next", ids, c.next)
				for _, d := range next {
					if h := d.Token.(*held); h.Of.poll != c.poll {
						t.Errorf("poll %d brought the next, want %d", h.Of.poll, c.poll)
					}
				}
			})
		})
	}
}

// TestQueueOfOnePoll: the messages of one poll do not make each other stale, in whatever
// order the service sends them. A message that is received again replaces itself and what
// earlier polls brought behind it.
//
// Promises: S
func TestQueueOfOnePoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		q := s.queue(t, func(of *inhand.Service[receipt]) {
			of.Stale = func(held, next receipt) bool { return held.n == next.n }
		})
		settled := func(want string) {
			t.Helper()
			ds, ids := receive(t, q, 10)
			equal(t, "received", ids, want)
			for _, d := range ds {
				must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
			}
		}
		q.Add(messages(1, "a5 a6 a2 a3")...)
		settled("a5")
		q.Add(messages(2, "a5 a6 a2")...)
		settled("a5")
		settled("a6")
		settled("a2")
		settled("")
	})
}

// TestQueueTogether: a message and what waits behind it are given back by one request, and
// none of them is handed out before the service has answered for all of them.
//
// Promises: O
func TestQueueTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		delay    time.Duration
		answer   map[string]error
		requests string
		fails    bool
	}{
		"with a delay":             {delay: 5 * time.Second, requests: "hide 5s a1 a2 a3"},
		"at once":                  {requests: "hide 1s a1 a2 a3"},
		"later one without answer": {requests: "hide 1s a1 a2 a3", answer: map[string]error{"a2": errBusy}, fails: true},
		"head without answer":      {requests: "hide 1s a1 a2 a3", answer: map[string]error{"a1": errBusy}, fails: true},
		"lost":                     {requests: "hide 1s a1 a2 a3", answer: map[string]error{"a1": inhand.ErrLost, "a3": inhand.ErrLost}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				s.answer = c.answer
				q := s.queue(t, func(of *inhand.Service[receipt]) { of.Together, of.MinDelay = true, time.Second })
				q.Add(messages(1, "a1 a2 b1 a3")...)
				ds, _ := receive(t, q, 10)
				verdicts := []broker.Verdict{{Delivery: ds[0], Delay: c.delay}}
				err := q.Settle(t.Context(), verdicts)
				equal(t, "requests", s.taken(), c.requests)
				if errors.Is(err, errBusy) != c.fails {
					t.Errorf("settled: %v", err)
				}
				if c.fails {
					_, ids := receive(t, q, 10)
					equal(t, "received before the repetition", ids, "")
					s.taken()
					s.answer = nil
					must(t, q.Settle(t.Context(), verdicts))
					equal(t, "requests of the repetition", s.taken(), c.requests)
				}
				s.polls <- messages(2, "a1 a2")
				_, ids := receive(t, q, 10)
				equal(t, "received next", ids, "a1")
				s.taken()
				q.Close()
				equal(t, "requests of Close", s.taken(), "hide 1s a1 a2 b1")
			})
		})
	}
}

// TestQueueLateAnswers: the answer to an Extend that comes when its message is settled
// takes nothing from the next one.
func TestQueueLateAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		q := s.queue(t, nil)
		q.Add(messages(1, "a1 a2")...)
		ds, _ := receive(t, q, 10)
		s.at = make(chan string)
		s.answer = map[string]error{}
		var extending sync.WaitGroup
		extending.Go(func() {
			if err := q.Extend(t.Context(), ds); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		twice := []broker.Verdict{{Delivery: ds[0], Ack: true}, {Delivery: ds[0]}}
		must(t, q.Settle(t.Context(), twice))
		equal(t, "requests", s.taken(), "delete a1")
		s.answer["a1"] = inhand.ErrLost
		<-s.at
		extending.Wait()
		s.at = nil
		_, ids := receive(t, q, 10)
		equal(t, "received next", ids, "a2")
		err := q.Settle(t.Context(), []broker.Verdict{{Delivery: broker.Delivery{Origin: "elsewhere"}}})
		if err == nil || err.Error() != "testbroker: settle: verdict 0 (elsewhere): not a delivery of this source" {
			t.Errorf("settled another's: %v", err)
		}
	})
}

// TestQueuePolls: one poll at a time, while there is room, and as long as it takes: what
// it brings is for a later Receive. Its error is returned once.
func TestQueuePolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		q := s.queue(t, func(of *inhand.Service[receipt]) { of.MaxHeld = 3 })
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := q.Receive(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("received: %v", err)
				}
			})
		}
		both.Wait()
		equal(t, "requests of two", s.taken(), "poll 1/3")
		s.polls <- messages(1, "a1 b1 a2")
		synctest.Wait()
		first, ids := receive(t, q, 1)
		equal(t, "received", ids, "a1")
		_, ids = receive(t, q, 5)
		equal(t, "received", ids, "b1")
		_, ids = receive(t, q, 5)
		equal(t, "received at the bound", ids, "")
		equal(t, "requests at the bound", s.taken(), "")
		must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: first[0], Ack: true}}))
		_, ids = receive(t, q, 5)
		equal(t, "received", ids, "a2")
		close(s.polls)
		if _, err := q.Receive(t.Context(), 5); !errors.Is(err, errBusy) {
			t.Errorf("received of a failed poll: %v", err)
		}
		equal(t, "requests", s.taken(), "delete a1, poll 5/1")
		s.polls = make(chan []*held)
		_, ids = receive(t, q, 5)
		equal(t, "received", ids, "")
		equal(t, "requests after a failed poll", s.taken(), "poll 5/1")
	})
}

// TestQueueCapsBytes: large messages are polled few at a time, and none while those that are
// held reach the bound, whatever the bound on their number.
//
// Promises: G
func TestQueueCapsBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		q := s.queue(t, func(of *inhand.Service[receipt]) { of.MaxBytes = 4 << 20 })
		large := messages(1, "a1 b1 c1")
		for _, h := range large {
			h.Delivery.Message.Payload = make([]byte, 2<<20-100)
		}
		s.polls <- large[:1]
		first, ids := receive(t, q, 5)
		equal(t, "received", ids, "a1")
		s.polls <- large[1:]
		_, ids = receive(t, q, 5)
		equal(t, "received", ids, "b1 c1")
		equal(t, "requests", s.taken(), "poll 5/4, poll 5/1")
		_, ids = receive(t, q, 5)
		equal(t, "received above the bound", ids, "")
		equal(t, "requests above the bound", s.taken(), "")
		must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: first[0], Ack: true}}))
		_, _ = receive(t, q, 5)
		equal(t, "requests below the bound", s.taken(), "delete a1, poll 5/1")
	})
}

// TestQueueBatches: requests have as many messages, and are as many at once, as the
// service takes.
func TestQueueBatches(t *testing.T) {
	t.Parallel()
	for parallel, most := range map[int]int{1: 1, 3: 3, 8: 5} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				q := s.queue(t, func(of *inhand.Service[receipt]) { of.Batch, of.Parallel = 2, parallel })
				q.Add(messages(1, "a1 b1 c1 d1 e1 f1 g1 h1 i1")...)
				ds, _ := receive(t, q, 10)
				var verdicts []broker.Verdict
				for _, d := range ds {
					verdicts = append(verdicts, broker.Verdict{Delivery: d, Ack: true})
				}
				s.answer, s.whole = map[string]error{"c1": errBusy}, map[string]error{"delete e1 f1": errBusy}
				if err := q.Settle(t.Context(), verdicts); err == nil || err.Error() != "busy\nbusy" {
					t.Errorf("settled: %v", err)
				}
				requests := strings.Split(s.taken(), ", ")
				slices.Sort(requests)
				equal(t, "requests", strings.Join(requests, ", "), "delete a1 b1, delete c1 d1, delete e1 f1, delete g1 h1, delete i1")
				if s.top != most {
					t.Errorf("%d requests at once, want %d", s.top, most)
				}
				s.answer, s.whole = nil, nil
				must(t, q.Settle(t.Context(), verdicts))
				requests = strings.Split(s.taken(), ", ")
				slices.Sort(requests)
				equal(t, "requests of the repetition", strings.Join(requests, ", "), "delete c1 e1, delete f1")
				if n := inhand.Groups(q); n != 0 {
					t.Errorf("%d groups are kept, want none", n)
				}
			})
		})
	}
}

// TestQueueRace: a message is handed out while the answer to an earlier Extend of it is
// noted. Only a run with -race can fail.
func TestQueueRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newService().queue(t, func(of *inhand.Service[receipt]) {
			of.Hide = func(_ context.Context, batch []*held, _ time.Duration) ([]error, error) {
				time.Sleep(15 * time.Second)
				return make([]error, len(batch)), nil
			}
		})
		q.Add(messages(1, "a1 a2")...)
		first, err := q.Receive(t.Context(), 1)
		must(t, err)
		var extending sync.WaitGroup
		extending.Go(func() { _ = q.Extend(t.Context(), first) }) // until 15 s
		synctest.Wait()
		must(t, q.Settle(t.Context(), []broker.Verdict{{Delivery: first[0], Ack: true}}))
		time.Sleep(11 * time.Second)
		second, err := q.Receive(t.Context(), 1) // extends until 26 s
		must(t, err)
		extending.Wait()
		if len(second) != 1 {
			t.Errorf("received %v", second)
		}
	})
}
