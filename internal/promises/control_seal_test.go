package promises

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store/sqlitestore"
)

// TestSealedFromEndToEnd: between Enqueue and the handler a sealed payload is unreadable: in
// the outbox, at the broker and in a dead letter.
//
// Promises: C
func TestSealedFromEndToEnd(t *testing.T) {
	key, err := seal.NewKey("2026-11", []byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := seal.NewRing(key)
	if err != nil {
		t.Fatal(err)
	}
	box := seal.New(ring, nil)
	db, _ := sqlite(t)
	sqliteOutbox(t, db)
	ob := outbox.New(dialect.SQLite, &outbox.Options{Sealer: box})
	err = throughSQL(db)(t.Context(), func(tx outbox.Tx) error {
		return ob.Enqueue(t.Context(), tx,
			postrider.Message{Topic: "orders", Key: "a", Type: "good", Payload: []byte("secret 1"), Headers: map[string]string{"trace": "x"}},
			postrider.Message{Topic: "orders", Key: "b", Type: "bad", Payload: []byte("secret 2")})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range readBack(t, db, readSQLite) {
		if bytes.Contains(m.Payload, []byte("secret")) || m.Headers[seal.HeaderKey] != "2026-11" {
			t.Errorf("the outbox contains %+v", m)
		}
	}

	b := membroker.New(nil)
	ctx, stop := context.WithCancel(t.Context())
	carried := make(chan error, 1)
	go func() { carried <- relay.New(sqlitestore.New(db, nil), b.Sink(), nil).Run(ctx) }()
	src := source(b, 2)
	opts := quick
	opts.Opener = box
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &opts)
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var seen []string
	c.HandleMessage("good", func(_ context.Context, _ *sql.Tx, m postrider.Message) error {
		seen = append(seen, string(m.Payload)+" "+m.Headers["trace"]+m.Headers[seal.HeaderKey])
		return nil
	})
	c.HandleMessage("bad", func(context.Context, *sql.Tx, postrider.Message) error { return consumer.Permanent(errors.New("no")) })
	runUntil(t, src, c.Run)
	stop()
	if err := <-carried; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []string{"secret 1 x"}) {
		t.Errorf("the handler saw %q", seen)
	}
	for _, e := range b.Log("orders") {
		if bytes.Contains(e.Message.Payload, []byte("secret")) {
			t.Errorf("the broker has %q", e.Message.Payload)
		}
	}
	wantSealedLetter(t, c.Inbox(), db, box)
}

// wantSealedLetter requires one sealed dead letter that a person with the keys can open.
func wantSealedLetter(t *testing.T, in *inbox.Inbox, db *sql.DB, box *seal.Box) {
	t.Helper()
	letters, err := in.DeadLetters(t.Context(), db, "", 10)
	if err != nil || len(letters) != 1 || strings.Contains(string(letters[0].Message.Payload), "secret") {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	if m, err := box.Open(t.Context(), letters[0].Message); err != nil || string(m.Payload) != "secret 2" {
		t.Errorf("the dead letter opens as %q, %v", m.Payload, err)
	}
}
