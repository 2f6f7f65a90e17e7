package promises

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// TestGapIsReported: a gap that stays for a minute is reported with key, versions and age.
// An operator sends the missing messages again with "postrider replay", and the key
// continues.
//
// Promises: O
func TestGapIsReported(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		publish(t, b, versioned(0, 1), versioned(0, 4), versioned(0, 5), versioned(1, 2))
		gaps := make(chan inbox.Gap, 16)
		opts := patient(inbox.Contiguous)
		opts.OnGap = func(_ context.Context, g inbox.Gap) {
			gaps <- g
			panic("in OnGap")
		}
		var log bytes.Buffer // read when the consumer has ended
		opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c := consumer.New(source(b, 1<<30), consumer.SQL(db, dialectOf(in, db)), opts)
		var wrong atomic.Int32
		consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n == last+1 }, &wrong, nil))
		runWhile(t, c.Run, func() bool { return c.Stats().Stashed < 3 })
		stashedEarlier(t, db, in)
		var told []inbox.Gap
		runWhile(t, c.Run, func() bool {
			select {
			case g := <-gaps:
				if g.Age < time.Minute {
					t.Errorf("a new gap is reported: %+v", g)
				}
				if g.Key != "k0" { // the machine was suspended for a minute
					break
				}
				told = append(told, g)
				for v := g.Mark + 1; v <= g.Needs; v++ {
					publish(t, b, versioned(0, int(v)))
				}
			default:
			}
			return c.Stats().Effects < 5
		})
		if len(told) != 1 || told[0].Age < 2*time.Minute {
			t.Fatalf("reported %+v", told)
		}
		told[0].Age = 0
		if want := (inbox.Gap{Topic: "orders", Key: "k0", Mark: 1, Needs: 3, Stashed: 2}); told[0] != want {
			t.Errorf("reported %+v, want %+v", told[0], want)
		}
		if got := effects(t, db, "k0"); !slices.Equal(got, []int{1, 2, 3, 4, 5}) || wrong.Load() != 0 {
			t.Errorf("effects %v", got)
		}
		for _, want := range []string{"missing versions found", "key=k0 from=2 to=3 waiting=2 age=", "who=Options.OnGap"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is missing in the log:\n%s", want, &log)
			}
		}
	})
}

// stashedEarlier makes what waits of the key k0 two minutes older.
func stashedEarlier(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
	t.Helper()
	ago := "stashed_at - 120000000"
	if dialectOf(in, db) == dialect.Postgres {
		ago = "stashed_at - interval '2 minutes'"
	}
	if _, err := db.Exec("UPDATE " + table(in, db, "stash") + " SET stashed_at = " + ago + " WHERE key = 'k0'"); err != nil {
		t.Fatal(err)
	}
}

// behind is a source that returns nothing before look is closed.
type behind struct {
	*acked
	look <-chan struct{}
}

func (s behind) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	select {
	case <-s.look:
		return s.acked.Receive(ctx, limit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestWhatWaitsInTheBrokerIsNotMissing: a version that arrived while no consumer ran is
// applied, although the messages behind it have waited longer than SkipGap.
//
// Promises: O
func TestWhatWaitsInTheBrokerIsNotMissing(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		publish(t, b, versioned(0, 1), versioned(0, 3))
		opts := patient(inbox.Contiguous)
		opts.SkipGap = time.Minute
		var wrong atomic.Int32
		start := func(src broker.Source) *consumer.Consumer[*sql.Tx] {
			c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), opts)
			consumer.Handle(c, "stock.changed", applying(func(last, n int) bool { return n == last+1 }, &wrong, nil))
			return c
		}
		src := source(b, 3)
		c := start(src)
		runWhile(t, c.Run, func() bool { return c.Stats().Stashed < 1 })
		stashedEarlier(t, db, in)
		publish(t, b, versioned(0, 2))
		looked := make(chan struct{})
		c = start(behind{src, looked})
		var once sync.Once
		runWhile(t, c.Run, func() bool {
			if c.Stats().GapAge > time.Minute { // the first look at the gap is over
				once.Do(func() { close(looked) })
			}
			s := c.Stats()
			return s.Effects+s.Stale < 2
		})
		if got := effects(t, db, "k0"); !slices.Equal(got, []int{1, 2, 3}) || wrong.Load() != 0 {
			t.Errorf("effects %v, %+v", got, c.Stats())
		}
	})
}
