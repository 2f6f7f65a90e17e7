package pgstore_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// A poll of a quiet outbox looks at the sequence alone. That must hide neither
// a new row nor one whose number was drawn before and committed since.
func TestQuietOutboxHidesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		s := d.store("main")
		// Of its own, so that every read runs in one and the same session.
		writer := d.as("postgres")
		g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "b", Instance: "b", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		reads := make([]store.LaneRead, len(g.Lanes))
		for i, l := range g.Lanes {
			reads[i] = store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, After: l.Position, MaxRecords: 10}
		}
		read := func() (n int) {
			t.Helper()
			batches, err := s.Read(t.Context(), reads)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				n += len(b.Messages)
				readOf(reads, b.Lane).After = b.Position
			}
			return n
		}
		expect := func(want int, when string) {
			t.Helper()
			if n := read(); n != want {
				t.Fatalf("%s: %d messages, want %d", when, n, want)
			}
		}
		insert := d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'x')`)
		for range 3 {
			expect(0, "empty")
		}
		if _, err := writer.Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		expect(1, "after a commit")
		tx, err := writer.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }() // committed below on every other path
		if _, err := tx.Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			expect(0, "while the writer is open")
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(1, "after a commit that drew its number before")
		for range 3 {
			expect(0, "quiet again")
		}
	})
}
