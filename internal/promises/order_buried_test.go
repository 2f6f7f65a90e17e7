package promises

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
)

// crashFile names the database in the environment of a child process.
const crashFile = "POSTRIDER_PROMISES_CRASH_FILE"

// durable is a source in a table. The next process delivers unsettled messages again,
// with a higher number.
type durable struct {
	db     *sql.DB
	given  map[string]bool
	cancel context.CancelFunc // when all is settled
	hides  bool               // the number of a delivery is unknown
}

func (s *durable) Info() broker.SourceInfo                         { return broker.SourceInfo{Name: "table"} }
func (s *durable) Extend(context.Context, []broker.Delivery) error { return nil }

func (s *durable) Receive(ctx context.Context, _ int) ([]broker.Delivery, error) {
	for _, id := range []string{"good", "poison", "better"} {
		if s.given[id] {
			continue
		}
		s.given[id] = true
		var attempt int
		err := s.db.QueryRow("UPDATE delivery SET attempt = attempt + 1 WHERE id = ? AND NOT acked RETURNING attempt", id).Scan(&attempt)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if s.hides {
			attempt = 0
		}
		return []broker.Delivery{{Message: postrider.Message{ID: id, Topic: "t", Key: "k", Type: id}, Attempt: attempt, Origin: id}}, err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *durable) Settle(_ context.Context, vs []broker.Verdict) error {
	for _, v := range vs {
		if !v.Ack {
			continue
		}
		if _, err := s.db.Exec("UPDATE delivery SET acked = true WHERE id = ?", v.Delivery.Message.ID); err != nil {
			return err
		}
	}
	var left int
	err := s.db.QueryRow("SELECT count(*) FROM delivery WHERE NOT acked").Scan(&left)
	if left == 0 {
		s.cancel()
	}
	return err
}

const killed = 42

// beCrash runs a consumer whose handler ends the process at one message.
func beCrash(file string) error {
	hides := strings.HasPrefix(file, "hide:")
	file = strings.TrimPrefix(file, "hide:")
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	src := &durable{db: db, given: map[string]bool{}, cancel: cancel, hides: hides}
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &consumer.Options{Name: "billing", MaxAttempts: 3})
	for _, typ := range []string{"good", "better", "poison"} {
		c.HandleMessage(typ, func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if m.Type == "poison" {
				os.Exit(killed)
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?, 1)", m.ID)
			return err
		})
	}
	return c.Run(ctx)
}

// TestHandlerThatKillsTheProcessIsBuried: an attempt is committed before the handler
// runs, so the count survives the end of the process.
//
// Promises: S
func TestHandlerThatKillsTheProcessIsBuried(t *testing.T) {
	for name, prefix := range map[string]string{"source counts": "", "source does not count": "hide:"} {
		t.Run(name, func(t *testing.T) {
			db, file := sqlite(t)
			in := inboxDB(t, db, dialect.SQLite)
			_, err := db.Exec(`CREATE TABLE delivery (id TEXT PRIMARY KEY, attempt INTEGER NOT NULL DEFAULT 0, acked BOOLEAN NOT NULL DEFAULT false);
INSERT INTO delivery (id) VALUES ('good'), ('poison'), ('better')`)
			if err != nil {
				t.Fatal(err)
			}
			deaths := 0
			for range 10 {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), crashFile+"="+prefix+file)
				out, err := cmd.CombinedOutput()
				if err == nil {
					break
				}
				if code := cmd.ProcessState.ExitCode(); code != killed {
					t.Fatalf("the child ended with %d: %s", code, out)
				}
				deaths++
			}
			if deaths != 3 {
				t.Errorf("the handler killed the process %d times, want 3 = MaxAttempts", deaths)
			}
			letters, err := in.DeadLetters(t.Context(), db, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(letters) != 1 || letters[0].Message.ID != "poison" {
				t.Errorf("dead letters %+v, want only the poison", letters)
			}
			if n := count(t, db, "SELECT count(DISTINCT id) FROM effect"); n != 2 || n != count(t, db, "SELECT count(*) FROM effect") {
				t.Errorf("%d messages had an effect, want 2, once each", n)
			}
		})
	}
}
