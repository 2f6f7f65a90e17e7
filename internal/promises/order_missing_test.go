package promises

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/pgstore"
)

// lossy is a source that loses the first delivery of some versions, like a topic whose
// retention was too short.
type lossy struct {
	broker.Source

	mu    sync.Mutex
	loses []int64
	came  []int64 // versions, including lost ones
}

func (l *lossy) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := l.Source.Receive(ctx, limit)
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(ds, func(d broker.Delivery) bool {
		v := d.Message.Version
		l.came = append(l.came, v)
		at := slices.Index(l.loses, v)
		if at < 0 {
			return false
		}
		l.loses = slices.Delete(l.loses, at, at+1)
		_ = l.Settle(ctx, []broker.Verdict{{Delivery: d, Ack: true}})
		return true
	}), err
}

// TestMissingVersionsAreSentAgain: versions that were lost between relay and consumer are
// sent again from the outbox, and no others.
//
// Promises: O
func TestMissingVersionsAreSentAgain(t *testing.T) {
	url := postgres18(t)
	db, pool := openSQL(t, "pgx", url), pgxPool(t, url)
	in := inboxDB(t, db, dialect.Postgres)
	err := throughPgx(pool)(t.Context(), func(tx outbox.Tx) error {
		for v := 1; v <= 6; v++ {
			if err := outbox.New(dialect.Postgres, nil).Enqueue(t.Context(), tx, versioned(0, v)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &hops{T: t, pool: pool}
	b, st := membroker.New(nil), pgstore.New(pool, nil)
	h.background(relay.New(st, b.Sink(), nil).Run)

	src := &lossy{Source: b.Source("billing", "orders"), loses: []int64{3, 4}}
	opts := patient(inbox.Contiguous)
	if opts.OnGap, err = admin.SendMissing(st.Office(), "billing", nil); err != nil {
		t.Fatal(err)
	}
	c := consumer.New[*sql.Tx](src, consumer.SQL(db, dialect.Postgres), opts)
	consumer.Handle(c, "stock.changed", func(ctx context.Context, tx *sql.Tx, o order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		return err
	})
	runWhile(t, c.Run, func() bool { return c.Stats().Stashed < 2 })
	until(t, time.Minute, "the relay has settled every message", func() bool {
		return h.count(`SELECT count(*) FROM postrider.messages WHERE state <> 'Sent'`) == 0
	})
	if _, err := db.Exec("UPDATE " + table(in, db, "stash") + " SET stashed_at = stashed_at - interval '2 minutes'"); err != nil {
		t.Fatal(err)
	}
	runWhile(t, c.Run, func() bool { return c.Stats().Effects < 6 })
	if got := effects(t, db, "k0"); !slices.Equal(got, []int{1, 2, 3, 4, 5, 6}) {
		t.Errorf("effects %v", got)
	}
	if want := []int64{1, 2, 3, 4, 5, 6, 3, 4}; !slices.Equal(src.came, want) {
		t.Errorf("versions were received as %v, want %v", src.came, want)
	}
	var why string
	if err := db.QueryRow(`SELECT actor || ': ' || reason FROM postrider.audit WHERE act = 'replay' ORDER BY id LIMIT 1`).Scan(&why); err != nil || why != "billing: a consumer misses versions 3 to 4" {
		t.Errorf("the journal has the reason %q, %v", why, err)
	}
}
