package promises

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// versions returns the versions 1 to n of each key, some of them twice, in any order.
func versions(rng *rand.Rand, keys, n int) []postrider.Message {
	var msgs []postrider.Message
	for k := range keys {
		for v := 1; v <= n; v++ {
			m := versioned(k, v)
			msgs = append(msgs, m)
			if rng.IntN(3) == 0 {
				msgs = append(msgs, m)
			}
		}
	}
	rng.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	return msgs
}

func versioned(k, v int) postrider.Message {
	m := message(k*1000+v, fmt.Sprint("k", k), "stock.changed", order{fmt.Sprint("k", k), v})
	m.Version = int64(v)
	return m
}

// last returns the highest number among the effects of an id.
func last(ctx context.Context, tx *sql.Tx, id string) (n int, err error) {
	err = tx.QueryRowContext(ctx, "SELECT coalesce(max(n), 0) FROM effect WHERE id = $1", id).Scan(&n)
	return n, err
}

// applying returns a handler that inserts an effect if it may follow the last one, and
// sometimes fails.
func applying(follows func(last, n int) bool, wrong, fails *atomic.Int32) func(context.Context, *sql.Tx, order) error {
	return func(ctx context.Context, tx *sql.Tx, o order) error {
		before, err := last(ctx, tx, o.ID)
		if err != nil {
			return err
		}
		if !follows(before, o.N) {
			wrong.Add(1)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N); err != nil {
			return err
		}
		if fails != nil && fails.Add(1)%4 == 0 {
			return errors.New("one of four fails")
		}
		return nil
	}
}

// patient allows many attempts, because a quarter of them fails.
func patient(o inbox.Order) *consumer.Options {
	opts := quick
	opts.MaxAttempts = 50
	opts.Order = func(string) inbox.Order { return o }
	return &opts
}

// TestContiguous: for any order of delivery, with duplicates and failing handlers, each
// version is applied once and in turn.
//
// Promises: O, E
func TestContiguous(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) { testContiguous(t, db, in, 1) })
}

// TestContiguousInBatches: many messages share a transaction.
//
// Promises: E
func TestContiguousInBatches(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) { testContiguous(t, db, in, 8) })
}

func testContiguous(t *testing.T, db *sql.DB, in *inboxwork.Inbox, batch int) {
	t.Helper()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	const keys, n = 5, 25
	b := membroker.New(nil)
	msgs := versions(rng, keys, n)
	publish(t, b, msgs...)
	src := source(b, len(msgs))
	opts := patient(inbox.Contiguous)
	opts.Batch = batch
	c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), opts)
	var wrong, fails atomic.Int32
	consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n == last+1 }, &wrong, &fails))
	runWhile(t, c.Run, func() bool { return c.Stats().Effects+c.Stats().Duplicates < int64(len(msgs)) })
	for k := range keys {
		if got := effects(t, db, fmt.Sprint("k", k)); !slices.Equal(got, from(1, n)) {
			t.Errorf("seed %d: key k%d: effects %v", seed, k, got)
		}
	}
	s := c.Stats()
	if wrong.Load() != 0 || s.Effects != keys*n || s.Effects+s.Duplicates != int64(len(msgs)) || s.Dead != 0 || s.Stale != 0 {
		t.Errorf("seed %d: %d out of turn, %+v of %d deliveries", seed, wrong.Load(), s, len(msgs))
	}
	if left := count(t, db, "SELECT count(*) FROM "+table(in, db, "stash")) + count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); left != 0 {
		t.Errorf("%d rows are left in stash and attempts", left)
	}
}

// TestLatest: applied versions rise and include the last one; all others are dropped.
//
// Promises: E
func TestLatest(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		const keys, n = 5, 25
		b := membroker.New(nil)
		msgs := versions(rng, keys, n)
		publish(t, b, msgs...)
		src := source(b, len(msgs))
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Latest))
		var wrong, fails atomic.Int32
		consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n > last }, &wrong, &fails))
		runUntil(t, src, c.Run)
		for k := range keys {
			got := effects(t, db, fmt.Sprint("k", k))
			mark := mark(t, db, in, fmt.Sprint("k", k))
			if len(got) == 0 || !slices.IsSorted(got) || got[len(got)-1] != n || mark != n {
				t.Errorf("seed %d: key k%d: effects %v, mark %d", seed, k, got, mark)
			}
		}
		if s := c.Stats(); wrong.Load() != 0 || s.Effects+s.Duplicates+s.Stale != int64(len(msgs)) || s.Stale == 0 {
			t.Errorf("seed %d: %d out of turn, %+v of %d deliveries", seed, wrong.Load(), s, len(msgs))
		}
	})
}

// TestContiguousSkipsAnnouncedVersions: the consumer does not wait for versions that the
// key's next message announces as missing.
//
// Promises: O
func TestContiguousSkipsAnnouncedVersions(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		four, six, seven := versioned(0, 4), versioned(0, 6), versioned(0, 7)
		four.Headers = map[string]string{envelope.Gap: "2-3"}
		six.Headers = map[string]string{envelope.Gap: "2-3,5"}
		late := versioned(0, 3)
		late.Headers = map[string]string{envelope.Generation: "1"}
		b := membroker.New(nil)
		publish(t, b, seven, six, versioned(0, 1), four, late)
		src := source(b, 5)
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Contiguous))
		var wrong atomic.Int32
		consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n > last }, &wrong, nil))
		runUntil(t, src, c.Run)
		if got, s := effects(t, db, "k0"), c.Stats(); !slices.Equal(got, []int{1, 4, 6, 7}) || wrong.Load() != 0 || s.Stale != 1 {
			t.Errorf("effects %v, %d out of turn, %+v", got, wrong.Load(), s)
		}
	})
}

// TestContiguousStopsBehindTheDead: a dead letter blocks its key and no other. A mark that
// is set by hand releases the key.
//
// Promises: O
func TestContiguousStopsBehindTheDead(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		var msgs []postrider.Message
		for v := 1; v <= 5; v++ {
			msgs = append(msgs, versioned(0, v), versioned(1, v))
		}
		publish(t, b, msgs...)
		src := source(b, len(msgs))
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Contiguous))
		consumer.Handle(c, "stock.changed", func(ctx context.Context, tx *sql.Tx, o order) error {
			if o.ID == "k0" && o.N == 3 {
				return consumer.Permanent(errors.New("no"))
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
			return err
		})
		runWhile(t, c.Run, func() bool { return c.Stats().Stashed < 2 || c.Stats().Effects < 7 })
		if zero, one := effects(t, db, "k0"), effects(t, db, "k1"); !slices.Equal(zero, from(1, 2)) || !slices.Equal(one, from(1, 5)) {
			t.Fatalf("effects %v and %v", zero, one)
		}
		if s := c.Stats(); s.Dead != 1 || s.Stashed != 2 {
			t.Fatalf("%+v", s)
		}
		three := versioned(0, 3).ID
		inTx(t, db, func(tx inbox.Conn) error {
			g, err := in.NextGap(t.Context(), tx, nil)
			if err != nil || g == nil || g.Key != "k0" || g.Mark != 2 || g.Needs != 3 || g.Stashed != 2 {
				t.Errorf("gap %+v, %v", g, err)
			}
			return in.Revive(t.Context(), tx, three)
		})
		runWhile(t, c.Run, func() bool { return c.Stats().Dead < 2 }) // the letter dies again
		inTx(t, db, func(tx inbox.Conn) error { return in.Discard(t.Context(), tx, three) })
		runWhile(t, c.Run, func() bool { return c.Stats().Effects < 9 })
		if got := effects(t, db, "k0"); !slices.Equal(got, []int{1, 2, 4, 5}) {
			t.Errorf("effects %v", got)
		}
		for name, act := range map[string]func(context.Context, inbox.Conn, string) error{"Revive": in.Revive, "Discard": in.Discard} {
			inTx(t, db, func(tx inbox.Conn) error {
				if err := act(t.Context(), tx, three); !errors.Is(err, inbox.ErrNotDead) {
					t.Errorf("%s of a missing message: %v", name, err)
				}
				return nil
			})
		}
	})
}

// TestDeadLetterIsRevived: a revived dead letter has its effect, and its key continues in
// order. A topic without an order needs neither key nor version.
func TestDeadLetterIsRevived(t *testing.T) {
	for kept, want := range map[inbox.Order][]int{inbox.AnyOrder: {1, 3, 2}, inbox.Contiguous: {1, 2, 3}} {
		t.Run(kept.String(), func(t *testing.T) {
			everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
				b := membroker.New(nil)
				publish(t, b, versioned(0, 1), versioned(0, 2), versioned(0, 3))
				src := source(b, 3)
				c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(kept))
				var mended atomic.Bool
				consumer.Handle(c, "stock.changed", func(ctx context.Context, tx *sql.Tx, o order) error {
					if o.N == 2 && !mended.Load() {
						return consumer.Permanent(errors.New("no"))
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
					return err
				})
				runUntil(t, src, c.Run)
				mended.Store(true)
				inTx(t, db, func(tx inbox.Conn) error { return in.Revive(t.Context(), tx, versioned(0, 2).ID) })
				runWhile(t, c.Run, func() bool { return c.Stats().Effects < 3 })
				if got := effects(t, db, "k0"); !slices.Equal(got, want) {
					t.Errorf("effects %v", got)
				}
				if left := count(t, db, "SELECT count(*) FROM "+table(in, db, "stash")) + count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); left != 0 {
					t.Errorf("%d rows are left in stash and attempts", left)
				}
			})
		})
	}
}

// TestGapIsGivenUp: after SkipGap the key continues, and late versions of the gap are
// stale.
//
// Promises: O
func TestGapIsGivenUp(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		publish(t, b, versioned(0, 1), versioned(0, 4), versioned(0, 5))
		src := source(b, 4)
		opts := patient(inbox.Contiguous)
		opts.SkipGap = time.Microsecond
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), opts)
		var wrong atomic.Int32
		consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n > last }, &wrong, nil))
		// Run searches for gaps when it begins: before both versions are in the stash, or, on a
		// slow machine, between them.
		runWhile(t, c.Run, func() bool { s := c.Stats(); return s.Stashed < 2 && s.Effects < 3 })
		runWhile(t, c.Run, func() bool { return c.Stats().Effects < 3 })
		publish(t, b, versioned(0, 2))
		runUntil(t, src, c.Run)
		if got, s := effects(t, db, "k0"), c.Stats(); !slices.Equal(got, []int{1, 4, 5}) || s.Stale != 1 || wrong.Load() != 0 {
			t.Errorf("effects %v, %+v", got, s)
		}
	})
}

// TestNoPlaceInTheOrder: a message of an ordered topic without key or version is dead at
// once, and again after a retry. It is never dropped.
//
// Promises: S
func TestNoPlaceInTheOrder(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		unnumbered, keyless, unreadable, binary := message(1, "k0", "stock.changed", order{"k0", 1}), versioned(0, 1), versioned(0, 2), versioned(0, 3)
		keyless.Key, binary.Key = "", "k\xff"
		unreadable.Headers = map[string]string{envelope.Gap: "two"}
		msgs := []postrider.Message{unnumbered, keyless, unreadable, binary}
		for i := range msgs {
			msgs[i].ID = message(i, "", "", nil).ID
		}
		publish(t, b, msgs...)
		src := source(b, len(msgs))
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Contiguous))
		consumer.Handle(c, "stock.changed", func(context.Context, *sql.Tx, order) error {
			t.Error("the handler ran")
			return nil
		})
		dead := func() {
			t.Helper()
			letters, err := in.DeadLetters(t.Context(), db, "", 10)
			if err != nil || len(letters) != len(msgs) {
				t.Fatalf("%d dead letters, %v", len(letters), err)
			}
			for _, l := range letters {
				if !strings.Contains(l.Cause, "no place in its topic's order") {
					t.Errorf("cause %q", l.Cause)
				}
			}
		}
		runUntil(t, src, c.Run)
		dead()
		for _, m := range msgs {
			inTx(t, db, func(tx inbox.Conn) error { return in.Revive(t.Context(), tx, m.ID) })
		}
		runWhile(t, c.Run, func() bool { return c.Stats().Dead < int64(2*len(msgs)) })
		dead()
	})
}

// TestKeysOfAnyBytes: keys with equal readable parts have separate marks, and a key that is
// longer than the table allows has a mark too.
//
// Promises: E
func TestKeysOfAnyBytes(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		var msgs []postrider.Message
		for i, key := range []string{"k", "k\xff", "k\xfe", "k\x00", strings.Repeat("k", 600), strings.Repeat("k", 601)} {
			for _, v := range []int{2, 1, 2, 3} { // 1 is stale, the second 2 a duplicate
				m := versioned(i, v)
				m.Key = key
				msgs = append(msgs, m)
			}
		}
		publish(t, b, msgs...)
		src := source(b, len(msgs))
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), patient(inbox.Latest))
		var wrong atomic.Int32
		consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n > last }, &wrong, nil))
		runUntil(t, src, c.Run)
		for i := range 6 {
			if got := effects(t, db, fmt.Sprint("k", i)); !slices.Equal(got, []int{2, 3}) {
				t.Errorf("key %d: effects %v", i, got)
			}
		}
		if s := c.Stats(); s.Stale != 6 || s.Duplicates != 6 || s.Dead != 0 || wrong.Load() != 0 {
			t.Errorf("%+v, %d wrong", s, wrong.Load())
		}
	})
}

func from(first, last int) (out []int) {
	for n := first; n <= last; n++ {
		out = append(out, n)
	}
	return out
}

func table(in *inboxwork.Inbox, db *sql.DB, name string) string {
	return strings.TrimSuffix(attemptTable(in, db), "attempt") + name
}

func mark(t *testing.T, db *sql.DB, in *inboxwork.Inbox, key string) (version int64) {
	t.Helper()
	inTx(t, db, func(tx inbox.Conn) (err error) {
		version, err = in.Mark(t.Context(), tx, "orders", key)
		return err
	})
	return version
}

// TestUnstashedLeavesNoAttempt: a process died during an attempt of a stashed message.
// Another one applies it after the message it waited for.
func TestUnstashedLeavesNoAttempt(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		inTx(t, db, func(tx inbox.Conn) error {
			_, err := in.Claim(t.Context(), tx, versioned(0, 2))
			ruling, _, guard := in.Guard(t.Context(), tx, versioned(0, 2), inbox.Contiguous, "t@2")
			if ruling != inboxwork.Early {
				t.Errorf("version 2 before 1: %v", ruling)
			}
			there, hold := in.HoldStashed(t.Context(), tx, inboxwork.Stashed{Message: versioned(0, 2)})
			if !there {
				t.Error("version 2 is not in the stash")
			}
			_, begun := in.BeginAttempt(t.Context(), tx, versioned(0, 2), inboxwork.Try{Origin: "t@2", Owner: "dead"})
			return errors.Join(err, guard, hold, begun)
		})
		inTx(t, db, func(tx inbox.Conn) error {
			_, _, err := in.Guard(t.Context(), tx, versioned(0, 1), inbox.Contiguous, "t@1")
			n, _, unstash := in.Unstash(t.Context(), tx, "orders", "k0", 10, func(inboxwork.Stashed) error { return nil })
			if n != 1 {
				t.Errorf("%d applied from the stash, want 1", n)
			}
			there, hold := in.HoldStashed(t.Context(), tx, inboxwork.Stashed{Message: versioned(0, 2)})
			if there {
				t.Error("version 2 was applied but is still in the stash")
			}
			return errors.Join(err, unstash, hold)
		})
		if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); n != 0 {
			t.Errorf("%d rows of attempts are left", n)
		}
	})
}

func inTx(t *testing.T, db *sql.DB, fn func(tx inbox.Conn) error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := errors.Join(fn(inbox.SQL(tx)), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

// TestErasedIsNotHandledInItsTurn: an erased message that waited for earlier versions is
// applied without its handler.
//
// Promises: O
func TestErasedIsNotHandledInItsTurn(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		gone := versioned(0, 2)
		gone.Payload, gone.Headers = nil, map[string]string{postrider.ErasedHeader: "2026-11-21T20:00:00Z"}
		publish(t, b, gone, versioned(0, 3))
		c := consumer.New(source(b, 1<<30), consumer.SQL(db, dialectOf(in, db)), patient(inbox.Contiguous))
		var handled, empty atomic.Int32
		c.HandleMessage("stock.changed", func(_ context.Context, _ *sql.Tx, m postrider.Message) error {
			handled.Add(1)
			if len(m.Payload) == 0 {
				empty.Add(1)
			}
			return nil
		})
		sent := false
		runWhile(t, c.Run, func() bool {
			if !sent && c.Stats().Stashed == 2 {
				sent = true
				publish(t, b, versioned(0, 1))
			}
			return c.Stats().Effects < 3
		})
		if handled.Load() != 2 || empty.Load() != 0 {
			t.Errorf("%d were handled, %d of them erased; want 2 and 0", handled.Load(), empty.Load())
		}
	})
}

// runWhile runs a consumer while more returns true, at most two minutes.
func runWhile(t *testing.T, run func(context.Context) error, more func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for more() && ctx.Err() == nil {
		<-tick.C
	}
	if more() {
		t.Error("the consumer was not done within two minutes")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
