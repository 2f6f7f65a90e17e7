package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// A payload that a consumer comes too late for is gone, which is a failure that
// people see; only one that a person erased is erased, which is acknowledged.
// What stands in the parked table is fetched there, also when the row has lost it.
//
// Promises: L
func TestPayloadsThatAgedAreNotErased(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', k, 'x', 'secret' FROM unnest('{old,parked,erased,undecided,removed}'::text[]) k`)
		refs := map[string]claim.Ref{}
		for _, b := range o.read() {
			for i, m := range b.Messages {
				refs[m.Key] = claim.Ref{Schema: d.schema, Lane: int(b.Lane), Seq: b.Meta[i].Seq, ID: m.ID}
				switch m.Key {
				case "parked":
					o.settle(b.Lane, store.Settlement{Park: []store.Park{{Seq: b.Meta[i].Seq, Message: m, State: store.Retry, DueIn: time.Hour}}})
				case "undecided":
					o.settle(b.Lane, store.Settlement{Park: []store.Park{{Seq: b.Meta[i].Seq, Message: m, State: store.Dead}}})
				}
			}
		}
		o.drain()
		d.sentAgo("2 days")
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) VALUES ('t', 'young', 'x', 'secret')`)
		for _, b := range o.read() {
			for i, m := range b.Messages {
				refs[m.Key] = claim.Ref{Schema: d.schema, Lane: int(b.Lane), Seq: b.Meta[i].Seq, ID: m.ID}
			}
		}
		o.drain()
		if found, err := d.erase("erased", false); err != nil || found.Rows != 1 {
			t.Fatalf("erase: %+v, %v", found, err)
		}
		req := ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "undecided"}, Actor: "ann", Reason: "request 7"}
		if n, err := o.store.Office().Eraser.Erase(t.Context(), req, 10); err != nil || n != 1 {
			t.Fatalf("erase of what has a dead letter yet: %d, %v", n, err)
		}
		if n, _ := d.prune(o.store, ops.PruneRequest{Payloads: true, OlderThan: 24 * time.Hour}); n != 3 {
			t.Errorf("retention emptied %d rows", n)
		}
		d.exec(`DELETE FROM box.outbox WHERE key = 'removed'`)
		// The role has the privileges of docs/relay.md and no others.
		role := d.extraRole("fetcher")
		d.exec(`ALTER ROLE ` + role + ` LOGIN`)
		d.exec(`GRANT USAGE ON SCHEMA "` + d.schema + `" TO ` + role)
		d.exec(`GRANT SELECT (lane, seq, id, payload, emptied_at, headers) ON box.outbox TO ` + role)
		d.exec(`GRANT SELECT (pipe, lane, seq, id, payload) ON box.parked TO ` + role)
		d.exec(`GRANT SELECT (name) ON box.pipe TO ` + role)
		bodies := pgstore.NewBodies(d.as(role))
		for key, want := range map[string]error{"young": nil, "parked": nil, "old": claim.ErrGone, "removed": claim.ErrGone, "erased": seal.ErrErased, "undecided": seal.ErrErased} {
			payload, err := bodies.Fetch(t.Context(), refs[key])
			if !errors.Is(err, want) || err == nil && string(payload) != "secret" {
				t.Errorf("%s: %q, %v, want %v", key, payload, err, want)
			}
		}
	})
}

// The newest messages are the pipe's, their payloads are bounded, and who may
// see no payloads may ask for them without.
func TestNewest(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't' || g % 10, 'k' || g, 'x', '1234567890' FROM generate_series(1, 100) g`)
		d.add(ops.AddPipe{Name: "some", Actor: "ann", Filter: store.Filter{Topics: []string{"t3", "t4"}}})
		for _, c := range []struct {
			pipe              string
			n, bodies         int
			want, size, topic int
		}{
			{"main", 1000, 1 << 20, 100, 1000, 10},
			{"main", 7, 1 << 20, 7, 70, 7},
			{"main", 100, 25, 3, 30, 3},
			{"main", 100, 0, 100, 0, 10},
			{"some", 1000, 1 << 20, 20, 200, 2},
			{"some", 5, 1, 1, 10, 1},
			{"not yet", 100, 0, 100, 0, 10},
		} {
			msgs, err := d.store(c.pipe).Office().Samples.Newest(t.Context(), c.n, c.bodies)
			size, topics := 0, map[string]bool{}
			for i, m := range msgs {
				size += len(m.Payload)
				topics[m.Topic] = true
				if c.pipe == "main" && m.Key != "k"+[]string{"100", "99", "98"}[min(i, 2)] && i < 3 {
					t.Errorf("message %d from the end is %s", i, m.Key)
				}
			}
			if err != nil || len(msgs) != c.want || size != c.size || len(topics) != c.topic {
				t.Errorf("%+v: %d messages with %d bytes of %d topics, %v", c, len(msgs), size, len(topics), err)
			}
		}
		if topics, err := d.store("some").Office().Samples.Topics(t.Context()); err != nil || len(topics) != 2 {
			t.Errorf("topics of the pipe: %q, %v", topics, err)
		}
		reader := pgstore.New(d.roles()["reader"], &pgstore.Options{Schema: d.schema})
		if topics, err := reader.Office().Samples.Topics(t.Context()); err != nil || len(topics) != 10 {
			t.Errorf("a reader's topics: %q, %v", topics, err)
		}
		if msgs, err := reader.Office().Samples.Newest(t.Context(), 10, 0); err != nil || len(msgs) != 10 {
			t.Errorf("a reader's newest: %d, %v", len(msgs), err)
		}
		if _, err := reader.Office().Samples.Newest(t.Context(), 10, 1); err == nil {
			t.Error("a reader sees payloads")
		}
	})
}
