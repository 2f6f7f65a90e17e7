package promises

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

const (
	deadlyStore    = "POSTRIDER_PROMISES_DEADLY" // its presence makes this binary a relay whose sink may end it
	deadlyExit     = 42
	deadlyAttempts = 3
)

// deadly is a sink that writes messages into a table and ends the process at poison.
type deadly struct{ pool *pgxpool.Pool }

func (deadly) Info() broker.Info { return broker.Info{Name: "deadly"} }

func (d deadly) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	for i := range msgs {
		if msgs[i].Type == poison {
			os.Exit(deadlyExit)
		}
		if _, err := d.pool.Exec(ctx, `INSERT INTO arrived (payload) VALUES ($1)`, string(msgs[i].Payload)); err != nil {
			errs := make([]error, len(msgs))
			for j := i; j < len(msgs); j++ {
				errs[j] = broker.Outage(err, "", "")
			}
			return errs
		}
	}
	return nil
}

// beDeadly runs a relay until standard input ends.
func beDeadly(url string) error {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		cancel()
	}()
	return relay.New(pgstore.New(pool, nil), deadly{pool}, &relay.Options{
		Window: window, Page: window / 2, LeaseTTL: 700 * time.Millisecond,
		DeliverTimeout: 2 * time.Second, // a suspect goes again after up to six of them
		Retry:          relay.Retry{Base: 10 * time.Millisecond, Max: 20 * time.Millisecond, MaxAttempts: deadlyAttempts},
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}).Run(ctx)
}

// TestAMessageThatEndsItsRelay restarts a relay until only the messages behind the deadly
// one are pending.
//
// Promises: S
func TestAMessageThatEndsItsRelay(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		r.exec(`CREATE TABLE arrived (n bigserial PRIMARY KEY, payload text NOT NULL)`)
		r.bulk(4)
		r.exec(`INSERT INTO postrider.outbox (topic, key, type, payload) VALUES ($1, 'bad', $2, 'x')`, r.topic, poison)
		r.bulk(4)
		const most = 30
		deaths := 0
		for done := false; !done; {
			if deaths > most {
				t.Fatalf("the message ended %d relays", deaths)
			}
			done = r.untilItEnds()
			if !done {
				deaths++
			}
		}
		t.Logf("%d relays ended", deaths)
		recs, err := pgstore.New(r.pool, nil).Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if len(recs) != 1 || recs[0].State != store.Dead || recs[0].Code != store.CodeCrashed || recs[0].Message.Type != poison || recs[0].Attempts != deadlyAttempts {
			t.Errorf("parked records are %+v, want only the deadly message, dead after %d attempts", recs, deadlyAttempts)
		}
		rows, err := r.pool.Query(t.Context(), `SELECT payload FROM arrived ORDER BY n`)
		if err != nil {
			t.Fatal(err)
		}
		arrived, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		r.exec(`DELETE FROM postrider.outbox WHERE key = 'bad'`) // the test counts only the other messages
		r.atMost(r.check(arrived), deaths)
	})
}

// untilItEnds runs a relay until its sink ends it. When no work is left it stops the relay
// and returns true.
func (r *rig) untilItEnds() (done bool) {
	r.Helper()
	cmd := exec.Command(os.Args[0])
	var said strings.Builder
	cmd.Env, cmd.Stderr = append(os.Environ(), deadlyStore+"="+r.url), &said
	in, err := cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = in.Close() }()
	st := pgstore.New(r.pool, nil)
	r.until(30*time.Second, "the relay ends, or no work is left", func() bool {
		select {
		case err = <-ended:
			return true
		default:
		}
		s, failed := st.Office().Admin.Status(r.Context())
		done = failed == nil && s.Pending == 0 && r.number(`SELECT count(*) FROM postrider.parked WHERE state <> 'dead'`) == 0
		return done
	})
	if done {
		_ = in.Close()
		err = <-ended
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == deadlyExit {
		return false
	}
	if err != nil {
		r.Fatalf("the relay ended with %v:\n%s", err, &said)
	}
	return done
}
