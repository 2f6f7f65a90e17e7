package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// doomed is the store of a process that dies in its first settlement that carries
// out an act: before it, or behind it without having heard the answer.
type doomed struct {
	store.Store
	behind bool

	mu   sync.Mutex
	dead bool
	once sync.Once
	died chan struct{} // closed when it is dead, and what it did last is done
}

var errDead = errors.New("this process is dead")

func (m *doomed) gone(die bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	dead := m.dead
	if die && !dead {
		m.dead = true
		return !m.behind
	}
	return dead
}

func (m *doomed) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if m.gone(false) {
		return store.Grant{}, errDead
	}
	return m.Store.Lease(ctx, req)
}

func (m *doomed) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if m.gone(false) {
		return nil, errDead
	}
	return m.Store.Read(ctx, reads)
}

func (m *doomed) Settle(ctx context.Context, s []store.Settlement) ([]store.Lane, error) {
	acts := slices.ContainsFunc(s, func(s store.Settlement) bool { return len(s.Requests) > 0 })
	if acts {
		defer m.tell()
	}
	if m.gone(acts) {
		return nil, errDead
	}
	lost, err := m.Store.Settle(ctx, s)
	if acts {
		return nil, errors.Join(errDead, err)
	}
	return lost, err
}

func (m *doomed) tell() { m.once.Do(func() { close(m.died) }) }

// run runs a relay until the returned function is called.
func (d *db) run(st store.Store, b *membroker.Broker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := relay.New(st, b.Sink(), &relay.Options{DrainTimeout: 500 * time.Millisecond})
		if err := r.Run(ctx); err != nil {
			d.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	d.Cleanup(stop)
	return stop
}

// until waits for something that takes a moment.
func (d *db) until(what string, ok func() bool) {
	d.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(end) {
			d.Fatalf("not within two minutes: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// An act is carried out once, whether its owner dies before it or behind it.
//
// Promises: Q
func TestOrderOutlivesItsOwner(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		for _, behind := range []bool{false, true} {
			d.dead(1100, 0)
			id, _ := o.order(ops.Order{Kind: store.ActRetry, Match: ops.Match{All: true}})
			first := &doomed{Store: d.store("main"), behind: behind, died: make(chan struct{})}
			b := membroker.New(nil)
			stop := d.run(first, b)
			<-first.died
			if n := d.count(`SELECT moved FROM box.request WHERE done_at IS NULL`); n != map[bool]int64{true: 1000, false: 0}[behind] {
				t.Errorf("behind %v: %d moved when its owner died", behind, n)
			}
			second := d.run(d.store("main"), b)
			d.until("the order is done and all is sent", func() bool { return b.Len("t") >= 1100 && d.count(`SELECT count(*) FROM box.parked`) == 0 })
			stop()
			second()
			o.wantState("at the end", id, 1100, true)
			for _, e := range b.Log("t") {
				if g := e.Message.Headers[envelope.Generation]; g != "1" {
					t.Fatalf("a message has generation %q", g)
				}
			}
			if n := b.Len("t"); n != 1100 {
				t.Errorf("behind %v: %d were sent", behind, n)
			}
		}
	})
}

// Two people at once, and no relay: each record is moved by one of them.
//
// Promises: Q
func TestTwoAdminsAtOnce(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		d.dead(2500, 0)
		d.exec(`UPDATE box.parked SET lane = seq % 4`)
		var wg sync.WaitGroup
		var moved [2]int64
		for i := range 2 {
			id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
			wg.Go(func() {
				s := d.store("main")
				state, err := admin.Follow(t.Context(), s, s.Office(), id, &admin.Options{Wait: time.Minute}, nil)
				if err != nil || !state.Done {
					t.Errorf("order %d: %+v, %v", id, state, err)
				}
				moved[i] = state.Moved
			})
		}
		wg.Wait()
		if left := d.count(`SELECT count(*) FROM box.parked`); left != 0 || moved[0]+moved[1] != 2500 {
			t.Errorf("%d are left, %v moved", left, moved)
		}
		if n := d.count(`SELECT sum(discarded) FROM box.repair`); n != 2500 {
			t.Errorf("%d are counted", n)
		}
	})
}

// While relays work and come and go, writers write, and people
// pause, resume and replay: the first copies of a key come in order, no copy that
// is replayed comes before a message of its key that was committed when the replay
// was asked for, and the books balance.
//
// Promises: O, Q
func TestRepairBesideLiveRelays(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		const keys, rounds = 6, 60
		w := &writers{committed: make([]int, keys)}
		b := membroker.New(nil)
		stop := d.run(d.store("main"), b)
		d.run(d.store("main"), b)
		var wg sync.WaitGroup
		for k := range keys {
			wg.Go(func() { w.write(d, k, rounds) })
		}
		rng := rand.New(rand.NewPCG(1, 2))
		var asked []replayAsked
		for i := range 8 {
			act := store.Act{Kind: store.ActPause, Key: fmt.Sprint(rng.IntN(keys)), Actor: "ann", Reason: "test"}
			if i%3 == 0 {
				act.Key, act.Lane = "", store.Lane(rng.IntN(4))
			}
			d.act(act)
			asked = append(asked, d.replay(o, w, fmt.Sprint(rng.IntN(keys))))
			act.Kind = store.ActResume
			d.act(act)
			if i == 4 {
				stop()
				stop = d.run(d.store("main"), b)
			}
			d.balanced(o.store, ops.AuditRequest{})
		}
		wg.Wait()
		d.until("everything is sent", func() bool {
			st, err := o.store.Office().Admin.Status(t.Context())
			return err == nil && st.Pending == 0
		})
		d.balanced(o.store, ops.AuditRequest{Full: true})
		for i := range asked {
			err := d.pool.QueryRow(t.Context(), d.sql(`SELECT coalesce(max(args->>'generation'), '') FROM box.request WHERE ask = $1`), asked[i].id).Scan(&asked[i].generation)
			if err != nil {
				t.Fatal(err)
			}
		}
		checkLog(t, b.Log("t"), keys, rounds, asked)
	})
}

type writers struct {
	mu        sync.Mutex
	committed []int // by key: the highest version
}

func (w *writers) write(d *db, key, rounds int) {
	for v := 1; v <= rounds; v++ {
		_, err := d.pool.Exec(d.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type, version) VALUES ('t', $1, $2, $3)`), fmt.Sprint(key), fmt.Sprint(v), v)
		if err != nil {
			d.Error(err)
			return
		}
		w.mu.Lock()
		w.committed[key] = v
		w.mu.Unlock()
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
	}
}

// act is a pause or its end, carried out by whoever owns the lane.
func (d *db) act(act store.Act) {
	d.Helper()
	s := d.store("main")
	results, err := admin.Execute(d.Context(), s, s.Office().Admin, []store.Act{act}, &admin.Options{Wait: 2 * time.Minute})
	if err != nil || results[0].Result != "done" {
		d.Fatalf("%+v: %+v, %v", act, results, err)
	}
}

// replayAsked is what was true when a replay of one key was asked for.
type replayAsked struct {
	id         int64 // of the order, 0: nothing matched
	key        string
	committed  int    // versions of the key
	generation string // of its copies
}

// replay asks for one and waits until it is handed over.
func (d *db) replay(o *owner, w *writers, key string) replayAsked {
	d.Helper()
	n, err := strconv.Atoi(key)
	if err != nil {
		d.Fatal(err)
	}
	w.mu.Lock()
	r := replayAsked{key: key, committed: w.committed[n]}
	w.mu.Unlock()
	id, _, err := o.store.Office().Orders.Order(d.Context(), ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: key}, Rate: 200, Actor: "ann", Reason: "test"})
	if errors.Is(err, store.ErrNotFound) {
		return r
	}
	if err != nil {
		d.Fatal(err)
	}
	r.id = id
	d.until("some of the replay is handed over", func() bool {
		st, err := o.store.Office().Orders.OrderState(d.Context(), id)
		return err != nil || st.Moved > 0 || st.Done || d.count(`SELECT count(*) FROM box.hold`) > 0
	})
	return r
}

// checkLog looks at the broker's log as a consumer would.
func checkLog(t *testing.T, log []membroker.Entry, keys, rounds int, asked []replayAsked) {
	t.Helper()
	first, again := map[string]int{}, 0
	highest := map[string]int{}
	for i, e := range log {
		m := e.Message
		v := int(m.Version)
		if _, seen := first[m.Key+"/"+m.Type]; !seen {
			first[m.Key+"/"+m.Type] = i
			if v != highest[m.Key]+1 {
				t.Fatalf("key %s: version %d came behind version %d", m.Key, v, highest[m.Key])
			}
			highest[m.Key] = v
		}
		if m.Headers[envelope.Generation] == "" {
			continue
		}
		again++
		g := m.Headers[envelope.Generation]
		at := slices.IndexFunc(asked, func(r replayAsked) bool { return r.key == m.Key && r.generation == g })
		if at < 0 {
			t.Fatalf("key %s: version %d has generation %s, nobody replayed it", m.Key, v, g)
		}
		if highest[m.Key] < asked[at].committed {
			t.Fatalf("key %s: a replay of version %d came when version %d was live, and only %d had been sent", m.Key, v, asked[at].committed, highest[m.Key])
		}
	}
	if len(first) != keys*rounds || again == 0 {
		t.Errorf("%d of %d messages arrived, %d copies were replayed", len(first), keys*rounds, again)
	}
	t.Logf("%d messages, %d replayed", len(first), again)
}
