package memstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

const ttl = 10 * time.Second

func lease(t *testing.T, s *memstore.Store, boot string) store.Grant {
	t.Helper()
	g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, Instance: boot, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func message(key string, n int) postrider.Message {
	return postrider.Message{Topic: "t", Key: key, Version: int64(n), Payload: fmt.Appendf(nil, "%s/%d", key, n)}
}

// writers runs random transactions and a reader beside them and reports the
// first broken promise.
func writers(t *testing.T, family memstore.Family, d memstore.Defect, seed uint64) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &workload{rng: rng, versions: map[string]int{}, open: map[string]*memstore.Tx{}, seen: map[string]int64{}}
	now := time.Unix(1, 0)
	w.db = memstore.New(&memstore.Options{
		Lanes: 2, Family: family, Defect: d,
		Now:  func() time.Time { now = now.Add(time.Millisecond); return now },
		Step: func(memstore.Point) error { w.step(); return nil },
	})
	g := lease(t, w.db, "a")
	epochs := map[store.Lane]int64{}
	for _, l := range g.Lanes {
		epochs[l.Lane] = l.Epoch
	}
	after := map[store.Lane]store.Position{}
	for n := range 400 {
		if n == 250 {
			w.finish()
		}
		w.step()
		for lane := range store.Lane(2) {
			b, err := w.db.Read(t.Context(), []store.LaneRead{{Lane: lane, After: after[lane], MaxRecords: 1 + rng.IntN(4)}})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.check(b[0].Messages); err != nil {
				return err
			}
			after[lane] = b[0].Position
			if rng.IntN(3) == 0 {
				_, err := w.db.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: lane, Epoch: epochs[lane], Position: after[lane]}})
				if err != nil {
					t.Fatal(err)
				}
				epochs[lane]++
				after[lane] = nil
			}
		}
	}
	for _, r := range w.db.Committed() {
		if w.seen[string(r.Message.Payload)] == 0 {
			return fmt.Errorf("record %d of transaction %d was never read", r.Seq, r.Tx)
		}
	}
	return nil
}

type workload struct {
	db       *memstore.Store
	rng      *rand.Rand
	versions map[string]int
	open     map[string]*memstore.Tx // by key: versions of a key are written under its lock
	early    []*memstore.Tx
	seen     map[string]int64
	last     map[string]int64
	done     bool
}

func (w *workload) write() {
	key := string(rune('a' + w.rng.IntN(6)))
	tx := w.open[key]
	switch {
	case tx == nil:
		w.open[key] = w.begin()
	case w.rng.IntN(3) > 0:
		w.versions[key]++
		_ = tx.Enqueue(message(key, w.versions[key]))
	default:
		_ = tx.Commit()
		delete(w.open, key)
	}
}

// begin returns a transaction that may have taken its id long before it takes
// the lock of its key.
func (w *workload) begin() *memstore.Tx {
	for len(w.early) < 3 {
		tx := w.db.Begin()
		if w.rng.IntN(2) == 0 {
			tx.AssignID()
		}
		w.early = append(w.early, tx)
	}
	i := w.rng.IntN(len(w.early))
	tx := w.early[i]
	w.early = slices.Delete(w.early, i, i+1)
	return tx
}

func (w *workload) step() {
	if !w.done {
		w.write()
	}
}

func (w *workload) finish() {
	w.done = true
	for key, tx := range w.open {
		_ = tx.Commit()
		delete(w.open, key)
	}
}

func (w *workload) check(msgs []postrider.Message) error {
	if w.last == nil {
		w.last = map[string]int64{}
	}
	for _, m := range msgs {
		w.seen[string(m.Payload)]++
		if w.seen[string(m.Payload)] > 1 {
			return fmt.Errorf("%s was read twice", m.Payload)
		}
		if m.Version != w.last[m.Key]+1 {
			return fmt.Errorf("%s came after version %d", m.Payload, w.last[m.Key])
		}
		w.last[m.Key] = m.Version
	}
	return nil
}

func TestReadsEverythingOnceInOrder(t *testing.T) {
	for _, family := range []memstore.Family{memstore.Cursor, memstore.Rows, memstore.Holes} {
		for seed := range uint64(60) {
			if err := writers(t, family, memstore.None, seed); err != nil {
				t.Fatalf("family %d, seed %d: %v", family, seed, err)
			}
		}
	}
}

func TestBrokenReadsAreCaught(t *testing.T) {
	for _, d := range []memstore.Defect{
		memstore.BareCursor, memstore.XidOrder, memstore.IgnoreInflight, memstore.InflightNotSaved,
		memstore.OnlyXip, memstore.SequenceLate, memstore.Reversed,
	} {
		var caught error
		for seed := uint64(0); seed < 200 && caught == nil; seed++ {
			caught = writers(t, memstore.Cursor, d, seed)
		}
		if caught == nil {
			t.Errorf("%v: 200 runs found nothing", d)
		}
	}
}

// A number that is given up while its statement runs costs a message without the net, and
// only the order of its key with it.
func TestTheNetCatchesWhatABrokenBarrierDropped(t *testing.T) {
	for defect, want := range map[memstore.Defect]int{memstore.NoBarrier: 2, memstore.NoNet: 1} {
		now := time.Unix(1, 0)
		s := memstore.New(&memstore.Options{Lanes: 1, Family: memstore.Holes, Defect: defect, Now: func() time.Time { now = now.Add(time.Second); return now }})
		slow := s.Begin()
		if err := slow.Draw(message("a", 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Enqueue(t.Context(), message("b", 1)); err != nil {
			t.Fatal(err)
		}
		came := 0
		for round := range 10 {
			if round == 5 {
				if err := slow.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			g := lease(t, s, "one").Lanes[0]
			b, err := s.Read(t.Context(), []store.LaneRead{{Epoch: g.Epoch, MaxRecords: 10}})
			if errors.Is(err, store.ErrIdentity) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			came += len(b[0].Messages)
			st := store.Settlement{BootID: "one", Epoch: g.Epoch, Position: b[0].Position, Delivered: len(b[0].Messages)}
			if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
				t.Fatalf("settle: lost %v, %v", lost, err)
			}
		}
		if came != want {
			t.Errorf("%v: %d messages came, want %d", defect, came, want)
		}
	}
}

func TestSettleIsFencedAndRepeatable(t *testing.T) {
	for _, family := range []memstore.Family{memstore.Cursor, memstore.Rows, memstore.Holes} {
		now := time.Unix(1, 0)
		s := memstore.New(&memstore.Options{Lanes: 1, Family: family, Now: func() time.Time { return now }})
		if err := s.Enqueue(t.Context(), message("a", 1), message("a", 2)); err != nil {
			t.Fatal(err)
		}
		g := lease(t, s, "one").Lanes[0]
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, Epoch: g.Epoch, MaxRecords: 1}})
		if err != nil || len(b[0].Messages) != 1 || !b[0].More {
			t.Fatalf("read: %v, %v", b, err)
		}
		st := store.Settlement{BootID: "one", Epoch: g.Epoch, Position: b[0].Position, Delivered: 1}
		for range 2 { // the first answer was lost
			if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
				t.Fatalf("settle: lost %v, %v", lost, err)
			}
		}
		now = now.Add(ttl)
		if g := lease(t, s, "two").Lanes[0]; g.Epoch <= st.Epoch+1 {
			t.Errorf("take-over left epoch %d", g.Epoch)
		}
		st.Epoch++
		if lost, _ := s.Settle(t.Context(), []store.Settlement{st}); len(lost) != 1 {
			t.Error("a zombie has settled")
		}
		if book := s.Books()[0]; !book.Balanced() || book.Delivered != 1 || book.Unsettled != 1 {
			t.Errorf("book: %+v", book)
		}
		if _, err := s.Read(t.Context(), []store.LaneRead{{After: store.Position("x")}}); err == nil {
			t.Error("a foreign position was accepted")
		}
	}
}

func TestAQueueIsDueWithItsHead(t *testing.T) {
	now := time.Unix(1, 0)
	s := memstore.New(&memstore.Options{Lanes: 1, Now: func() time.Time { return now }})
	g := lease(t, s, "one").Lanes[0]
	_, err := s.Settle(t.Context(), []store.Settlement{{BootID: "one", Epoch: g.Epoch, Park: []store.Park{
		{Seq: 2, Message: message("k", 2), State: store.Waiting},
		{Seq: 1, Message: message("k", 1), State: store.Retry, Captures: true, DueIn: time.Minute, Attempts: 1},
		{Seq: 3, Message: message("", 3), State: store.Retry, DueIn: time.Second, Attempts: 1},
		{Seq: 4, Message: message("d", 4), State: store.Dead, Captures: true},
		{Seq: 5, Message: message("d", 5), State: store.Waiting},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	due := func() (seqs []int64, v store.ParkedView) {
		b, err := s.Read(t.Context(), []store.LaneRead{{Parked: true, MaxRecords: 9}})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range b[0].Meta {
			seqs = append(seqs, m.Seq)
		}
		return seqs, b[0].Parked
	}
	seqs, v := due()
	if len(seqs) > 0 || v.NextDue != time.Second || fmt.Sprint(v.Captured) != "[d k]" || v.Records != 5 {
		t.Errorf("at once: due %v, view %+v", seqs, v)
	}
	now = now.Add(time.Minute)
	if seqs, _ = due(); fmt.Sprint(seqs) != "[3 1 2]" {
		t.Errorf("after a minute: due %v", seqs)
	}
	id, err := s.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActDiscard, Seq: 4})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Settle(t.Context(), []store.Settlement{{BootID: "one", Epoch: g.Epoch + 1, Unpark: []int64{1}, Delivered: 1, Requests: []int64{id}}})
	if err != nil {
		t.Fatal(err)
	}
	if seqs, _ = due(); fmt.Sprint(seqs) != "[2 5 3]" && fmt.Sprint(seqs) != "[2 3 5]" {
		t.Errorf("after the heads have left: due %v", seqs)
	}
	if _, err := s.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActRetry, Seq: 4}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("request for a record that is gone: %v", err)
	}
}

// Promises: Q
func TestTrimKeepsWhatIsPending(t *testing.T) {
	for _, family := range []memstore.Family{memstore.Cursor, memstore.Rows, memstore.Holes} {
		s := memstore.New(&memstore.Options{Lanes: 1, Family: family})
		g := lease(t, s, "one").Lanes[0]
		straggler := s.Begin()
		if err := straggler.Enqueue(message("a", 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Enqueue(t.Context(), message("b", 1)); err != nil {
			t.Fatal(err)
		}
		b, _ := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 9}})
		if _, err := s.Settle(t.Context(), []store.Settlement{{BootID: "one", Epoch: g.Epoch, Position: b[0].Position, Delivered: 1}}); err != nil {
			t.Fatal(err)
		}
		if n := s.Trim(); n != 1 {
			t.Errorf("trimmed %d", n)
		}
		if err := straggler.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := s.Trim(); n != 0 {
			t.Errorf("trimmed %d pending records", n)
		}
		b, _ = s.Read(t.Context(), []store.LaneRead{{MaxRecords: 9}})
		if len(b[0].Messages) != 1 || !bytes.Equal(b[0].Messages[0].Payload, []byte("a/1")) {
			t.Errorf("the straggler is gone: %+v", b)
		}
		if book := s.Books()[0]; !book.Balanced() {
			t.Errorf("book: %+v", book)
		}
	}
}

func TestWaitWakesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(nil)
		if _, err := s.Read(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := s.Wait(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("idle: %v after %v", err, time.Since(start))
		}
		go func() {
			time.Sleep(time.Second)
			_ = s.Enqueue(t.Context(), message("a", 1))
		}()
		start = time.Now()
		if err := s.Wait(t.Context(), time.Minute); err != nil || time.Since(start) != time.Second {
			t.Errorf("woken: %v after %v", err, time.Since(start))
		}
	})
}
