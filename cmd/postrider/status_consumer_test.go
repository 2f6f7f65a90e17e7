package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
)

// ward is a database whose consumer has everything that a doctor finds.
type ward struct {
	*testing.T
	store   string
	db      *sql.DB
	dialect dialect.Dialect
	in      *inboxwork.Inbox
}

const patientConsumer = "billing eu" // which a shell takes in quotes only

func openWard(t *testing.T, url string) *ward {
	t.Helper()
	w := &ward{T: t, store: url}
	w.db = buried(t, url, patientConsumer, "a") // version 1 of key ka
	_, d, err := open.SQL(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	w.dialect, w.in = d, inboxwork.New(d, patientConsumer, nil)
	w.inTx(func(conn inbox.Conn) error {
		for _, m := range []postrider.Message{
			{ID: "b", Topic: "orders", Key: "ka", Version: 2}, // behind the dead letter
			{ID: "c", Topic: "orders", Key: "kc", Version: 5}, // behind 1 to 4
		} {
			if _, err := w.in.Claim(t.Context(), conn, m); err != nil {
				return err
			}
			if r, _, err := w.in.Guard(t.Context(), conn, m, inbox.Contiguous, "orders/0@1"); err != nil || r != inboxwork.Early {
				return errors.Join(err, errors.New("not early"))
			}
		}
		_, err := w.in.FailAttempt(t.Context(), conn, postrider.Message{ID: "d", Topic: "orders"}, "orders/0@2", false, -3*time.Minute, "no")
		return err
	})
	w.age("_stash", "stashed_at", 2*time.Minute)
	w.age("", "processed_at", 100*24*time.Hour)
	return w
}

func (w *ward) inTx(fn func(inbox.Conn) error) {
	w.Helper()
	tx, err := w.db.BeginTx(w.Context(), nil)
	if err != nil {
		w.Fatal(err)
	}
	defer tx.Rollback()
	if err := errors.Join(fn(inbox.SQL(tx)), tx.Commit()); err != nil {
		w.Fatal(err)
	}
}

func (w *ward) exec(query string) {
	w.Helper()
	if _, err := w.db.ExecContext(w.Context(), query); err != nil {
		w.Fatalf("%s: %v", query, err)
	}
}

func (w *ward) table(suffix string) string {
	if w.dialect != dialect.Postgres {
		return "postrider_inbox" + suffix
	}
	return "postrider.inbox" + suffix
}

// age makes the rows of a table older.
func (w *ward) age(table, column string, by time.Duration) {
	w.Helper()
	expr := column + " - interval '" + by.String() + "'"
	if w.dialect != dialect.Postgres {
		expr = fmt.Sprintf("%s - %d", column, by.Microseconds())
	}
	w.exec("UPDATE " + w.table(table) + " SET " + column + " = " + expr)
}

// examine returns what the doctor finds by check.
func (w *ward) examine(code exit.Code) map[string]ops.Finding {
	w.Helper()
	r := cli(w.T, nil, "", "doctor", "--store", w.store, "--consumer", "all", "--output", "json", "--fail-on", "warning")
	var d admin.Diagnosis
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code != code {
		w.Fatalf("exit code %d, want %d, %v\n%s%s", r.code, code, err, r.out, r.err)
	}
	found := map[string]ops.Finding{}
	for _, f := range d.Findings {
		found[f.Check] = f
	}
	return found
}

// run executes the commands that a fix names.
func (w *ward) run(f ops.Finding) {
	w.Helper()
	commands := spanned.FindAllStringSubmatch(f.Fix, -1)
	if len(commands) == 0 {
		w.Fatalf("%s names no command: %s", f.Check, f.Fix)
	}
	for _, m := range commands {
		args := append(split(m[1])[1:], "--store", w.store, "--actor", "test")
		if r := cli(w.T, nil, "", args...); r.code != exit.OK {
			w.Errorf("%s: exit code %d\n%s%s", m[1], r.code, r.out, r.err)
		}
	}
}

// TestConsumersAreExamined: each finding about a consumer goes away by its own
// remedy, and without a consumer nothing is found.
func TestConsumersAreExamined(t *testing.T) {
	for name, url := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "billing.db"),
		"postgres": testserver.SharedPostgres(t, "18").Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "postgres" { // where there is a database before there are tables
				w := &ward{T: t, store: url}
				if found := w.examine(exit.OK); len(found) != 1 || found["consumer-tables"].Severity != ops.OK {
					t.Errorf("without tables: %+v", found)
				}
			}
			w := openWard(t, url)
			found := w.examine(exit.Findings)
			for check, want := range map[string]ops.Severity{
				"consumer-tables": ops.OK, "consumer-dead": ops.Critical, "consumer-gaps": ops.Warning,
				"consumer-stalled": ops.Warning, "consumer-retention": ops.Warning,
			} {
				if f := found[check]; f.Check != check || f.Severity != want || want != ops.OK && (f.Data["consumer"] != patientConsumer || f.Fix == "" || f.Why == "") {
					t.Errorf("%s: %+v, want %v", check, f, want)
				}
			}
			w.run(found["consumer-gaps"])
			w.run(found["consumer-dead"]) // retried, and what is left discarded: the letter waits in the stash now
			// No dead letter blocks: it has its values.
			gaps := w.examine(exit.Findings)["consumer-gaps"]
			if want := "postrider guard set --consumer 'billing eu' --topic orders --key kc --version 4 --reason WHY"; !strings.Contains(gaps.Fix, want) {
				t.Errorf("%q lacks %q", gaps.Fix, want)
			}
			w.run(gaps)
			w.inTx(func(conn inbox.Conn) error {
				// The consumer, had it run: the dead letter and what waits behind it, and what was overdue.
				if err := w.in.ForgetAttempts(t.Context(), conn, postrider.Message{ID: "d"}); err != nil {
					return err
				}
				for _, key := range []string{"ka", "kc"} { // up to where nothing waits
					if _, err := w.in.SetMark(t.Context(), conn, "orders", key, 9); err != nil {
						return err
					}
				}
				_, _, err := w.in.Unstash(t.Context(), conn, "orders", "ka", 10, func(inboxwork.Stashed) error { return nil })
				_, _, err2 := w.in.Unstash(t.Context(), conn, "orders", "kc", 10, func(inboxwork.Stashed) error { return nil })
				return errors.Join(err, err2)
			})
			w.run(found["consumer-retention"])
			w.examine(exit.OK)
			w.exec("DROP TABLE " + w.table("_stash"))
			f := w.examine(exit.Findings)["consumer-tables"]
			if f.Severity != ops.Critical || !strings.Contains(f.What, "inbox_stash") {
				t.Errorf("a table is missing: %+v", f)
			}
			for _, sql := range f.SQL {
				w.exec(sql)
			}
			w.examine(exit.OK)
		})
	}
}

// TestStatusOfConsumers: what a person and a program are told of each.
func TestStatusOfConsumers(t *testing.T) {
	for name, url := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "billing.db"),
		"postgres": testserver.SharedPostgres(t, "18").Database(t),
		"mariadb":  testserver.SharedMySQL(t, testserver.MariaDB10).Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			status := func(code exit.Code, args ...string) result {
				t.Helper()
				r := cli(t, nil, "", append([]string{"status", "--store", url}, args...)...)
				if r.code != code {
					t.Fatalf("%v: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
				}
				return r
			}
			if name == "postgres" {
				if r := status(0, "--consumer", "all"); !strings.Contains(r.out, "no consumer") {
					t.Errorf("without tables: %s", r.out)
				}
			}
			openWard(t, url)
			text := status(0, "--consumer", patientConsumer).out
			for _, want := range []string{"billing eu", "2400h", "retrying        1, overdue 1", "behind a dead letter 1", "orders kc: versions 1 to 4 are missing, 1 message behind them for 2m"} {
				if !strings.Contains(text, want) {
					t.Errorf("stdout lacks %q:\n%s", want, text)
				}
			}
			var all []answer.Consumer
			if err := json.Unmarshal([]byte(status(0, "--consumer", "all", "--output", "json").out), &all); err != nil || len(all) != 1 {
				t.Fatalf("%+v, %v", all, err)
			}
			if a := all[0]; a.Dead != 1 || a.Gaps != 2 || a.Blocked != 1 || a.Overdue != 1 || len(a.Waiting) != 2 || a.Waiting[1].To != 4 || *a.IdleSeconds < 8e6 {
				t.Errorf("%+v", a)
			}
			if r := status(2, "--consumer", "nobody"); !strings.Contains(r.err, patientConsumer) {
				t.Errorf("an unknown consumer: %s", r.err)
			}
			status(2, "--consumer", "all", "--watch")
		})
	}
}
