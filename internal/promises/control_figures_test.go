package promises

import (
	"context"
	"database/sql"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/consumer/metrics"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// TestFiguresOfAConsumer compares a consumer's counters, the status of its tables and its
// metrics.
func TestFiguresOfAConsumer(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		gap, blocked := versioned(1, 3), versioned(2, 1) // versions 2 of k1 and 1 of k2 never have an effect
		blocked.Type = "stock.refused"
		first := versioned(1, 1)
		first.Time = time.Now().Add(-time.Second)
		publish(t, b, first, first, gap, blocked, versioned(2, 2))
		src := source(b, 5)
		opts := patient(inbox.Contiguous)
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), opts)
		consumer.Handle(c, "stock.changed", func(context.Context, *sql.Tx, order) error { return nil })
		consumer.Handle(c, "stock.refused", func(context.Context, *sql.Tx, order) error {
			return consumer.Permanent(errors.New("refused"))
		})
		began := time.Now()
		runWhile(t, c.Run, func() bool {
			s := c.Stats()
			return s.Effects+s.Duplicates+s.Stashed+s.Dead < 5
		})
		s := c.Stats()
		if s.Effects != 1 || s.Duplicates != 1 || s.Stashed != 2 || s.Dead != 1 || s.Stale+s.Retries+s.Skipped != 0 || len(s.Down) != 0 {
			t.Errorf("%+v", s)
		}
		if s.Handler.Count() != 2 || s.Latency.Count() != 1 || s.Latency.Sum < time.Second || s.Latency.Sum > time.Since(began)+time.Minute {
			t.Errorf("handler %+v, latency %+v", s.Handler, s.Latency)
		}
		status, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := inbox.Status{
			Consumer: "billing", At: status.At, LastClaim: status.LastClaim, FirstClaim: status.FirstClaim,
			Dead: 1, DeadAge: status.DeadAge, Stashed: 2, Gaps: 2, Blocked: 1, GapAge: status.GapAge,
		}
		if status != want || status.GapAge <= 0 || status.DeadAge <= 0 || status.LastClaim.Before(status.FirstClaim) || status.At.Sub(status.LastClaim) > time.Minute {
			t.Errorf("status\n%+v, want\n%+v", status, want)
		}
		w := httptest.NewRecorder()
		metrics.Handler(c).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		for _, line := range []string{
			`postrider_consumer_status_up{consumer="billing"} 1`, `postrider_consumer_blocked_keys{consumer="billing"} 1`,
			`postrider_consumer_effects_total{consumer="billing"} 1`, `postrider_consumer_latency_seconds_count{consumer="billing"} 1`,
		} {
			if !strings.Contains(w.Body.String(), line+"\n") {
				t.Errorf("missing metric: %s", line)
			}
		}
	})
}

// TestStatusWithoutAConsumer checks the status of work that waits for a stopped consumer.
func TestStatusWithoutAConsumer(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		inTx(t, db, func(conn inbox.Conn) error {
			for i, late := range []time.Duration{-time.Hour, time.Hour} { // one attempt that is due, one that is not
				if _, err := in.FailAttempt(t.Context(), conn, versioned(1, i+1), "here", false, late, "no"); err != nil {
					return err
				}
			}
			if _, err := in.Bury(t.Context(), conn, versioned(2, 1), "here", 1, "no"); err != nil {
				return err
			}
			if err := in.Revive(t.Context(), conn, versioned(2, 1).ID); err != nil {
				return err
			}
			other := inboxwork.New(dialectOf(in, db), "audit", nil)
			_, err := other.Claim(t.Context(), conn, versioned(3, 1))
			return err
		})
		var (
			s     inbox.Status
			names []string
		)
		inTx(t, db, func(conn inbox.Conn) (err error) {
			if s, err = in.Status(t.Context(), conn); err != nil {
				return err
			}
			names, err = inboxwork.Consumers(t.Context(), conn, dialectOf(in, db), "")
			return err
		})
		if s.Retrying != 2 || s.Overdue != 1 || s.OverdueAge < 58*time.Minute || s.OverdueAge > 2*time.Hour || s.Due != 1 || s.DueAge <= 0 || s.Dead+s.Gaps != 0 {
			t.Errorf("%+v", s)
		}
		if want := []string{"audit", in.Consumer()}; !slices.Equal(names, want) {
			t.Errorf("consumers %q, want %q", names, want)
		}
	})
}

// TestStatusThroughPgx runs the same statements through the other driver.
func TestStatusThroughPgx(t *testing.T) {
	pool := pgxPool(t, postgresDB(t, "18"))
	in := inboxwork.New(dialect.Postgres, "billing", nil)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		conn := inbox.Pgx(tx)
		if err := in.Migrate(t.Context(), conn); err != nil {
			return err
		}
		if names, err := inboxwork.Consumers(t.Context(), conn, dialect.Postgres, ""); err != nil || len(names) != 0 {
			t.Errorf("consumers of empty tables: %q, %v", names, err)
		}
		s, err := in.Status(t.Context(), conn)
		if want := (inbox.Status{Consumer: "billing", At: s.At}); s != want {
			t.Errorf("%+v, want %+v", s, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
