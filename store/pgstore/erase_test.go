package pgstore_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// erase erases a key as the command does, without a relay.
func (d *db) erase(key string, dry bool) (admin.Erased, error) {
	d.Helper()
	req := admin.EraseRequest{DryRun: dry}
	req.Key, req.Actor, req.Reason = key, "ann", "request 7"
	return admin.Erase(d.Context(), d.store("main").Office(), req, &admin.Options{Poll: 5 * time.Millisecond, TTL: time.Second})
}

// contents are the payloads of a key by number.
func (d *db) contents(key string) string {
	d.Helper()
	var list string
	err := d.pool.QueryRow(d.Context(), d.sql(`SELECT coalesce(string_agg(encode(payload, 'escape') || CASE WHEN headers ? 'a' THEN '+' ELSE '' END
		|| CASE WHEN emptied_at IS NULL THEN '' ELSE '-' END, ' ' ORDER BY seq), '') FROM box.outbox WHERE key = $1`), key).Scan(&list)
	if err != nil {
		d.Fatal(err)
	}
	return list
}

// Promises: C
func TestEraseRemovesWhatIsDelivered(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		put := func(text string) {
			d.exec(`INSERT INTO box.outbox (topic, key, type, payload, headers, version) SELECT 't', k, 'x', convert_to($1, 'UTF8'), '{"a": "1", "b": "2"}', 3
				FROM unnest('{k,other}'::text[]) k`, text)
		}
		put("one")
		o.drain()
		late := d.begin()
		d.do(late, `INSERT INTO box.outbox (topic, key, payload) VALUES ('t', 'k', 'late')`)
		put("two")

		_, err := d.erase("k", false)
		var open *ops.UnsettledError
		if !errors.As(err, &open) || open.Pending["main"] != 1 {
			t.Fatalf("a message is to be delivered yet: %v", err)
		}
		o.drain()
		found, err := d.erase("k", true)
		if err != nil || found.Rows != 2 || len(found.Pending) != 0 {
			t.Errorf("dry run: %+v, %v", found, err)
		}
		if got := d.contents("k"); got != "one+ two+" {
			t.Errorf("a refusal or a dry run left %q", got)
		}
		if found, err = d.erase("k", false); err != nil || found.Rows != 2 {
			t.Errorf("erase: %+v, %v", found, err)
		}
		d.commit(late) // a straggler behind the cursor keeps its content until it is delivered
		if got := d.contents("k"); got != "- late -" && got != "- - late" {
			t.Errorf("left of the key: %q", got)
		}
		if _, err = d.erase("k", false); !errors.As(err, &open) {
			t.Errorf("a straggler is to be delivered yet: %v", err)
		}
		o.want("")
		if found, err = d.erase("k", false); err != nil || found.Rows != 1 || found.Before != 2 {
			t.Errorf("erase of the straggler: %+v, %v", found, err)
		}
		if got := d.contents("other"); got != "one+ two+" {
			t.Errorf("another key has %q", got)
		}
		if n := d.count(`SELECT count(*) FROM box.outbox WHERE key = 'k' AND version = 3 AND type = 'x' AND headers ? 'erased-at'`); n != 2 {
			t.Errorf("%d rows keep what is not content", n)
		}
		if got := d.entries(); !slices.Equal(got, []string{"ann erase k done 2 request 7", "ann erase k done 1 request 7"}) {
			t.Errorf("the journal says %q", got)
		}
		d.balanced(o.store, ops.AuditRequest{})
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// Every pipe must have sent what is erased; dead letters are discarded in each
// of them; what a pipe filters by stays.
//
// Promises: C
func TestEraseAsksEveryPipe(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		_, err := o.store.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "slow", Filter: store.Filter{Headers: map[string]string{"a": "1"}}, Actor: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		o.park("k", "dead", store.Dead)
		o.park("k", "waiting", store.Waiting)
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload, headers) VALUES ('t', 'k', 'x', 'nobody wants it', '{"b": "1"}')`)
		o.drain()
		_, err = d.erase("k", false)
		var open *ops.UnsettledError
		if !errors.As(err, &open) || !maps.Equal(open.Pending, map[string]int64{"main": 1, "slow": 2}) {
			t.Fatalf("pending: %v", err)
		}
		slow := &owner{db: d, store: d.store("slow"), boot: "s", page: 100}
		slow.lease()
		slow.drain()
		d.exec(`DELETE FROM box.parked WHERE type = 'waiting'`)
		for _, boot := range []*owner{o, slow} { // nobody runs: the command takes the lanes
			if _, err := boot.store.Lease(t.Context(), store.LeaseRequest{BootID: boot.boot, Leave: true, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		done, err := d.erase("k", false)
		if err != nil || done.Rows != 3 || done.Discarded != 1 || len(done.Undecided)+len(done.Pending) != 0 {
			t.Errorf("erase: %+v, %v", done, err)
		}
		if got := d.contents("k"); got != "+- +- -" {
			t.Errorf("left: %q, want the header that a pipe filters by", got)
		}
		if n := d.count(`SELECT count(*) FROM box.parked`); n != 0 {
			t.Errorf("%d dead letters left", n)
		}
		if got := strings.Join(d.entries(), "; "); !strings.Contains(got, "ann discard k done 1 erase: request 7") {
			t.Errorf("the journal says %s", got)
		}
	})
}

// What retention has left of a message, a person's wish removes as well.
//
// Promises: C
func TestEraseRemovesWhatRetentionLeft(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload, headers) SELECT 't', k, 'x', 'secret', '{"a": "ann@example.com"}' FROM unnest('{k,other}'::text[]) k`)
		o.drain()
		if n, _ := d.prune(o.store, ops.PruneRequest{Payloads: true}); n != 2 {
			t.Fatalf("retention emptied %d rows", n)
		}
		if found, err := d.erase("k", true); err != nil || found.Rows != 1 || found.Before != 0 {
			t.Errorf("dry run: %+v, %v", found, err)
		}
		for _, rows := range []int64{1, 0} {
			if found, err := d.erase("k", false); err != nil || found.Rows != rows || found.Before != 1-rows {
				t.Errorf("erase: %+v, %v", found, err)
			}
		}
		if got := d.contents("k") + d.contents("other"); got != "-+-" {
			t.Errorf("left: %q, want no headers of the key, and those of another", got)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
	})
}

// A pipe that begins in the past is told of erased messages in their place.
func TestErasedMessagesAreMarked(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.strict("t")
		d.exec(`INSERT INTO box.outbox (topic, key, payload) VALUES ('t', 'k', 'a'), ('t', 'k', 'b')`)
		o.drain()
		if done, err := d.erase("k", false); err != nil || done.Rows != 2 {
			t.Fatalf("erase: %+v, %v", done, err)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, payload) VALUES ('t', 'k', 'c')`)
		if _, err := o.store.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "new", From: ops.FromBeginning, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		n := &owner{db: d, store: d.store("new"), boot: "n", page: 100}
		n.lease()
		version := int64(0)
		for _, b := range n.read() {
			for _, m := range b.Messages {
				if version++; m.Version != version || (m.Headers[postrider.ErasedHeader] != "") != (version < 3) || len(m.Payload) != 1 == (version == 3) {
					t.Errorf("%+v", m)
				}
			}
		}
		if version != 3 {
			t.Errorf("%d messages", version)
		}
	})
}

// What was erased is not sent again, also when the replay was asked for before.
func TestErasedMessagesAreNotReplayed(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a'), ('t', 'other', 'b')`)
		o.drain()
		id, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Topic: "t"}})
		if plan.Records != 2 {
			t.Errorf("before: %+v", plan)
		}
		if done, err := d.erase("k", false); err != nil || done.Rows != 1 {
			t.Fatalf("erase: %+v, %v", done, err)
		}
		o.execute()
		o.wantState("the replay", id, 1, true)
		wantLabels(t, "due", o.due(), "b scheduled 1")
		if plan, err := o.store.Office().Orders.PlanOrder(t.Context(), ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}, Actor: "ann", Reason: "x"}); err != nil || plan.Records != 0 {
			t.Errorf("after: %+v, %v", plan, err)
		}
	})
}

func TestEraseNeedsKeyAndReason(t *testing.T) {
	d := fresh(t, "18", 4)
	s := d.store("main")
	for _, req := range []ops.EraseRequest{
		{EraseQuery: ops.EraseQuery{}, Actor: "ann", Reason: "x"},
		{EraseQuery: ops.EraseQuery{Key: "k"}, Actor: "ann"},
	} {
		if _, err := s.Office().Eraser.Erase(t.Context(), req, 10); err == nil {
			t.Errorf("%+v is accepted", req)
		}
	}
	if _, err := s.Office().Eraser.Erasable(t.Context(), ops.EraseQuery{}); err == nil {
		t.Error("an empty key is accepted")
	}
}

// Payloads go before their rows, and nothing else of a row does; stragglers and
// what a pipe has not settled keep theirs.
//
// Promises: C
func TestPayloadRetention(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		late := d.begin()
		d.do(late, `INSERT INTO box.outbox (topic, key, type, payload) VALUES ('t', 'k', 'late', 'secret')`)
		const insert = `INSERT INTO box.outbox (topic, key, type, payload, headers) SELECT 't', 'k' || g, 'x', 'secret', '{"a": "1"}' FROM generate_series(1, 50) g`
		d.exec(insert)
		d.exec(`INSERT INTO box.outbox (topic, key, payload, headers) SELECT 't', 'full', 'secret', jsonb_object_agg('h' || g, '') FROM generate_series(1, 64) g`)
		req := ops.PruneRequest{Payloads: true, OlderThan: time.Hour, Limit: 40}
		if n, _ := d.prune(o.store, req); n != 0 {
			t.Errorf("%d payloads of pending rows are gone", n)
		}
		o.drain()
		d.sentAgo("1 day")
		d.exec(insert)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		dry := req
		dry.DryRun = true
		if p, err := o.store.Office().Retention.Prune(t.Context(), dry); err != nil || p.Rows != 51 || p.Bytes != 51*6 {
			t.Errorf("dry run: %+v, %v", p, err)
		}
		if n, _ := d.prune(o.store, req); n != 51 {
			t.Errorf("the payloads of %d rows are gone, want 51", n)
		}
		d.commit(late)
		if n, _ := d.prune(o.store, req); n != 0 {
			t.Errorf("%d payloads of a straggler or gone before", n)
		}
		o.want("late")
		if n, _ := d.prune(o.store, req); n != 0 {
			t.Errorf("%d payloads of a straggler that was sent just now", n)
		}
		d.exec(`UPDATE box.minute SET late = '{}'`)
		if n, _ := d.prune(o.store, req); n != 1 {
			t.Errorf("%d payloads of the straggler", n)
		}
		if n := d.count(`SELECT count(*) FROM box.outbox WHERE payload = '' AND emptied_at IS NOT NULL AND headers ? 'erased-at'`); n != 52 {
			t.Errorf("%d rows are marked", n)
		}
		if n := d.count(`SELECT count(*) FROM box.outbox WHERE headers @> '{"a": "1"}'`); n != 100 {
			t.Errorf("%d rows have their headers", n)
		}
		d.balanced(o.store, ops.AuditRequest{Full: true})
		if _, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r", Payloads: true, MaxBytes: 1}); err == nil {
			t.Error("payloads by size")
		}
		keeper := newKeeper(t, o.store, &admin.KeeperOptions{OlderThan: 36 * time.Hour, Payloads: time.Minute, Rate: 1e6, Batch: 64})
		if done, err := keeper.Sweep(t.Context()); err == nil && done.Runner != "" {
			d.exec(`UPDATE box.retention SET until = '-infinity'`)
		}
		d.sentAgo("1 hour")
		d.exec(`INSERT INTO box.minute (pipe, at, pos, late) SELECT 'main', now() - interval '37 hours', array_agg(CASE WHEN c.lane = o.lane THEN o.seq ELSE 0 END ORDER BY c.lane), '{}'
			FROM box.lane_cursor c CROSS JOIN (SELECT lane, seq FROM box.outbox WHERE type = 'late') o`)
		done, err := keeper.Sweep(t.Context())
		if err != nil || done.Emptied != 50 || done.Rows != 1 || done.EmptiedBytes != 300 {
			t.Errorf("a keeper's sweep: %+v, %v", done, err)
		}
	})
}

// A sequence that was set back gives out numbers that lie behind the cursors:
// what looks delivered was never seen, and keeps its content.
func TestEraseStopsWhenTheSequenceWasSetBack(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(50)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		d.exec(`SELECT setval('box.outbox_seq', 10)`)
		d.exec(`DELETE FROM box.outbox WHERE seq BETWEEN 11 AND 20`)
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) VALUES ('t', 'unseen', 'unseen', 'x')`)
		if _, err := d.erase("unseen", false); !errors.Is(err, store.ErrIdentity) || d.contents("unseen") != "x" {
			t.Errorf("%q is left, %v", d.contents("unseen"), err)
		}
	})
}

// A pipe that is being added is owed what is not erased yet, as with retention.
//
// Promises: C
func TestEraseWaitsForAPipeThatIsAdded(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, payload) VALUES ('t', 'k', 'x')`)
		o.drain()
		tx := d.begin()
		d.do(tx, `LOCK TABLE box.pipe IN EXCLUSIVE MODE`)
		d.do(tx, `INSERT INTO box.pipe (name) VALUES ('late')`)
		done := make(chan error, 1)
		go func() {
			_, err := o.store.Office().Eraser.Erase(t.Context(), ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "k"}, Reason: "why", Actor: "ann"}, 10)
			done <- err
		}()
		d.awaitLock("pipe")
		d.commit(tx)
		if err := <-done; err != nil || d.contents("k") != "x" {
			t.Errorf("%q is left, %v", d.contents("k"), err)
		}
	})
}
