package promises

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// moody is a sink that acknowledges most messages, fails some once, and rejects a few until
// a person retries them.
type moody struct {
	memory
	seen map[string]int
}

func (m *moody) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	m.mu.Lock()
	fates, held, some := make([]error, len(msgs)), map[string]error{}, false
	for i := range msgs {
		text := string(msgs[i].Payload)
		h := fnv.New32a()
		_, _ = h.Write([]byte(text)) // a hash never fails
		m.seen[text]++
		switch {
		case held[msgs[i].Key] != nil:
			m.seen[text]--
			fates[i] = broker.NotTried(held[msgs[i].Key])
		case m.seen[text] == 1 && h.Sum32()%50 == 0:
			fates[i] = broker.Failed(errors.New("not now"), "moody", "")
		case m.seen[text] == 1 && h.Sum32()%211 == 0:
			fates[i] = broker.Rejected(errors.New("not like this"), "moody", "")
		default:
			m.got = append(m.got, text)
			continue
		}
		some, held[msgs[i].Key] = true, fates[i]
	}
	m.mu.Unlock()
	if !some {
		return nil
	}
	return fates
}

// severed is a store that a relay loses for ever, as if the relay were killed: sent
// messages stay unsettled.
type severed struct {
	*pgstore.Store
	dead atomic.Bool
}

var errKilled = errors.New("killed")

func (s *severed) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if s.dead.Load() {
		return store.Grant{}, errKilled
	}
	return s.Store.Lease(ctx, req)
}

func (s *severed) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if s.dead.Load() {
		return nil, errKilled
	}
	return s.Store.Read(ctx, reads)
}

// Settle loses its reply when the relay dies during the call.
func (s *severed) Settle(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
	if s.dead.Load() {
		return nil, errKilled
	}
	lost, err := s.Store.Settle(ctx, settlements)
	if s.dead.Load() {
		return nil, errKilled
	}
	return lost, err
}

// mortal runs a relay that kill ends without a shutdown.
func (r *rig) mortal(sink broker.Sink) (kill func()) {
	r.Helper()
	st := &severed{Store: pgstore.New(r.relayPool(), nil)}
	o := r.options()
	o.LeaseTTL, o.DrainTimeout, o.Retry = time.Second, 10*time.Millisecond, relay.Retry{Base: 50 * time.Millisecond, Max: 50 * time.Millisecond}
	o.Brake = -1
	re := relay.New(st, sink, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = re.Run(ctx); close(ended) }() // the error of a killed relay does not matter
	kill = func() { st.dead.Store(true); cancel(); <-ended }
	r.Cleanup(kill)
	return kill
}

// repair retries or discards every dead letter, as a person does, and returns the
// discarded ones.
func (r *rig) repair(st *pgstore.Store) (discarded []string) {
	r.Helper()
	dead, err := st.Office().Admin.Parked(r.Context(), ops.ParkedQuery{State: store.Dead})
	if err != nil {
		r.Fatal(err)
	}
	for i, d := range dead {
		act := store.Act{Kind: store.ActRetry, Seq: d.Seq, Actor: "ann", Reason: "test"}
		if i%3 == 0 {
			act.Kind = store.ActDiscard
		}
		done, err := admin.Execute(r.Context(), st, st.Office().Admin, []store.Act{act}, &admin.Options{Wait: time.Minute, Poll: 10 * time.Millisecond})
		if err != nil || done[0].Result == admin.ResultQueued {
			r.Fatalf("act %+v has the result %+v, %v", act, done, err)
		}
		if act.Kind == store.ActDiscard && done[0].Result == "done" {
			discarded = append(discarded, string(d.Message.Payload))
		}
	}
	return discarded
}

// TestBooksBalanceThroughKills: the books balance at every audit while relays are killed,
// messages fail, are rejected, retried and discarded, a transaction stays open, and every
// settled row is removed at once. In the end every message has arrived.
//
// Promises: Q
func TestBooksBalanceThroughKills(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		st := pgstore.New(r.pool, nil)
		keeper, err := admin.NewKeeper(st.Office(), nil)
		if err != nil {
			t.Fatal(err)
		}
		sink := &moody{seen: map[string]int{}}
		long := r.begin()
		r.raw(long, "long", 1)
		stop := r.writeOn(4)
		kills := []func(){r.mortal(sink), r.mortal(sink)}
		gone := map[string]bool{}
		looks := 0
		look := func(full bool) {
			b, err := keeper.Look(t.Context(), ops.AuditRequest{Full: full})
			if err != nil {
				t.Fatal(err)
			}
			if b.Difference() != 0 {
				t.Fatalf("audit %d differs by %d: %+v, missing %+v", looks, b.Difference(), differing(b), b.Missing)
			}
			looks++
		}
		removed := int64(0)
		for i := range 4 * scale() {
			from := sink.len()
			r.until(20*time.Second, "messages flow", func() bool {
				look(looks%20 == 0)
				swept, err := keeper.Sweep(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				removed += swept.Rows
				return sink.len() > from+300
			})
			for _, text := range r.repair(st) {
				gone[text] = true
			}
			kills[i%2]()
			kills[i%2] = r.mortal(sink)
			look(false)
		}
		r.commit(long)
		stop()
		r.until(30*time.Second, "nothing is left", func() bool {
			for _, text := range r.repair(st) {
				gone[text] = true
			}
			look(false)
			s, err := st.Office().Admin.Status(t.Context())
			return err == nil && s.Pending == 0 && r.number(`SELECT count(*) FROM postrider.parked`) == 0
		})
		if _, err := keeper.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		look(true)
		if !sink.has("long:1") && !gone["long:1"] {
			t.Error("the long transaction's message was lost")
		}
		r.complete(sink.arrived(), gone)
		t.Logf("%d audits, %d rows removed, %d discarded, %d arrived", looks, removed, len(gone), sink.len())
		if removed < 500 {
			t.Error("too few rows were removed for the test to prove anything")
		}
	})
}

func differing(b ops.Books) (lanes []ops.LaneBook) {
	for _, l := range b.Lanes {
		if l.Difference != 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// complete compares the arrived messages with the table truth, because the rows were
// removed.
func (r *rig) complete(arrived []string, gone map[string]bool) {
	r.Helper()
	have := map[string]bool{}
	for _, text := range arrived {
		have[text] = true
	}
	for k := range manyKeys {
		key := fmt.Sprint("k", k)
		last := r.number(`SELECT version FROM truth WHERE key = $1`, key)
		for v := range last {
			if text := fmt.Sprintf("%s:%d", key, v+1); !have[text] && !gone[text] {
				r.Errorf("lost: %s", text)
			}
		}
	}
	for text := range have {
		if key, _, ok := strings.Cut(text, ":"); !ok || key == "" {
			r.Errorf("phantom: %q", text)
		}
	}
}
