package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// slowly is eventually for what the server tells of transactions: it repeats its last answer
// to a caller that asks ten times a second.
func slowly(t *testing.T, what string, holds func() bool) {
	t.Helper()
	awaits(t, what, 300*time.Millisecond, holds)
}

// Each thing that can be wrong is found, and gone when it was repaired as the finding says.
func TestDoctor(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		address := server.Database(t)
		db := pool(t, address)
		s := New(db, nil)
		examine := func(db *sql.DB, limits ops.Limits, only ...string) []ops.Finding {
			t.Helper()
			found, err := New(db, nil).Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: only, Again: time.Millisecond, Timeout: 5 * time.Minute, Limits: limits})
			if err != nil || len(found) == 0 {
				t.Fatalf("%q: %d findings, %v", only, len(found), err)
			}
			return found
		}
		// ill returns the first finding of a check that contains a word, otherwise nil.
		ill := func(db *sql.DB, check, word string) *ops.Finding {
			t.Helper()
			for _, f := range examine(db, ops.Limits{Transaction: time.Second}, check) {
				if f.Severity != ops.OK && strings.Contains(f.What, word) {
					if f.Why == "" || f.Fix == "" || f.Check != check {
						t.Errorf("%+v", f)
					}
					return &f
				}
			}
			return nil
		}
		exec := func(query string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		migrate := func(req ops.MigrateRequest) {
			t.Helper()
			if _, err := s.Office().Migrator.Migrate(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		if ill(db, "schema", "no outbox") == nil {
			t.Error("a database without an outbox is not found")
		}
		migrate(ops.MigrateRequest{Lanes: testLanes})
		var open *sql.Tx
		for _, c := range []struct {
			check, word   string
			provoke, mend func()
		}{
			{"schema", "at version 1", func() { exec(`DELETE FROM postrider_migration WHERE version > 1`) }, func() { migrate(ops.MigrateRequest{}) }},
			{"relays", "no heartbeat", func() { exec(`INSERT INTO postrider_outbox (topic) VALUES ('t')`) }, func() {
				exec(`DELETE FROM postrider_outbox`) // then no message waits for a relay
			}},
			{"lanes", "4 of 4 lanes", func() { lease(t, s, "a"); exec(`UPDATE postrider_progress SET owner = ''`) }, func() { lease(t, s, "a") }},
			{"lag", "1 message is pending", func() { exec(`INSERT INTO postrider_outbox (topic, created_at) VALUES ('t', 0)`) }, func() { exec(`DELETE FROM postrider_outbox`) }},
			{"parked", "1 message is dead (rejected TOO_LARGE)", func() { exec(deadLetter) }, nil},
			{"parked", "1 message is being retried (rejected TOO_LARGE)", func() { exec(`UPDATE postrider_parked SET state = 'retry'`) }, func() { exec(`DELETE FROM postrider_parked`) }},
			{"pipes", `pipe "main" was paused by ann 0s ago: test`, func() {
				exec(`UPDATE postrider_pipe SET paused_at = ` + now + `, paused_by = 'ann', pause_reason = 'test'`)
			}, func() { exec(`UPDATE postrider_pipe SET paused_at = NULL`) }},
			{"pipes", "1 lane and 1 key", func() {
				exec("INSERT INTO postrider_hold (pipe, lane, `key`, at) VALUES ('main', 1, '', " + now + "), ('main', 1, 'k', " + now + ")")
			}, func() { exec(`DELETE FROM postrider_hold`) }},
			{"pipes", `endpoint "hook" of pipe "main" was stopped by ann`, func() {
				exec("INSERT INTO postrider_stop (pipe, destination, at, actor, reason) VALUES ('main', 'hook', " + now + ", 'ann', 'test')")
			}, func() { exec(`DELETE FROM postrider_stop`) }},
			{
				"requests", "1 act waits", func() {
					exec(`INSERT INTO postrider_act (pipe, lane, seq, kind, actor, reason, created_at) VALUES ('main', 0, 1, 'retry', 'ann', 'test', 0)`)
				},
				func() { exec(`UPDATE postrider_act SET done_at = 1`) },
			},
			{"indexes", "lane_seq", func() { exec(`ALTER TABLE postrider_outbox DROP KEY lane_seq`) }, nil},
			{"indexes", "lane_seq", func() { exec(`ALTER TABLE postrider_outbox DROP KEY lane_seq, ADD KEY lane_seq (lane)`) }, nil},
			{"indexes", "of_topic", func() { exec(`ALTER TABLE postrider_parked DROP KEY of_topic`) }, nil},
			{
				"transactions", "is open for", func() {
					var err error
					if open, err = db.BeginTx(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
					if _, err := open.ExecContext(t.Context(), insert); err != nil {
						t.Fatal(err)
					}
					slowly(t, "the transaction is a second old", func() bool { return ill(db, "transactions", "is open for") != nil })
				},
				func() { _ = open.Rollback() },
			},
			{
				"prepared", "prepared transactions", func() {
					raw, err := db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					name := `'` + address[strings.LastIndex(address, "/")+1:] + `'`
					t.Cleanup(func() { _, _ = db.ExecContext(context.WithoutCancel(t.Context()), "XA ROLLBACK "+name) })
					for _, query := range []string{"XA START " + name, insert, "XA END " + name, "XA PREPARE " + name} {
						if _, err := raw.ExecContext(t.Context(), query); err != nil {
							t.Fatal(err)
						}
					}
					_ = raw.Raw(func(any) error { return driver.ErrBadConn }) // the pool ends it
					slowly(t, "the prepared transaction is a second old", func() bool { return ill(db, "prepared", "prepared transactions") != nil })
				},
				func() {
					eventually(t, "the prepared transaction is rolled back", func() bool {
						_, err := db.ExecContext(t.Context(), "XA ROLLBACK '"+address[strings.LastIndex(address, "/")+1:]+"'")
						return err == nil
					})
				},
			},
			{
				"sequence", "began again", func() { exec(`UPDATE postrider_progress SET pos = 1000000`); exec(`DELETE FROM postrider_relay`) },
				func() { migrate(ops.MigrateRequest{Adopt: true}); lease(t, s, "b") },
			},
			{"sequence", "out of order", func() {
				exec(`INSERT INTO postrider_alarm (pipe, kind, n, at) VALUES ('main', 'late', 3, ` + now + `)`)
			}, func() { exec(`DELETE FROM postrider_alarm`) }},
		} {
			c.provoke()
			f := ill(db, c.check, c.word)
			if f == nil {
				t.Errorf("%s: %q is not found", c.check, c.word)
				continue
			}
			if c.mend != nil {
				c.mend()
			}
			for _, query := range f.SQL {
				if c.mend == nil {
					exec(query)
				}
			}
			if c.mend == nil && len(f.SQL) == 0 {
				continue
			}
			if open != nil { // since then the server tells of transactions with a delay
				slowly(t, c.check+": "+c.word+" is gone", func() bool { return ill(db, c.check, c.word) == nil })
			} else if again := ill(db, c.check, c.word); again != nil {
				t.Errorf("after its fix: %+v", again)
			}
		}
		far := applicationDB(t, address, "", func(c *mysql.Config) {
			c.InterpolateParams, c.Params = true, map[string]string{"timestamp": "1000000000"}
		})
		if f := ill(far, "clock", "differ by"); f == nil || f.Severity != ops.Critical {
			t.Errorf("a clock that is years away: %+v", f)
		}
		lease(t, s, "b") // the last one may be long ago
		for _, f := range examine(db, ops.Limits{Transaction: time.Hour}) {
			if f.Severity != ops.OK && f.Check != "settings" { // those of the server under test
				t.Errorf("in order: %+v", f)
			}
		}
		var names []string
		for _, c := range checks() {
			names = append(names, c.name)
		}
		for _, f := range examine(db, ops.Limits{}) {
			names = slices.DeleteFunc(names, func(name string) bool { return name == f.Check })
		}
		if len(names) > 0 {
			t.Errorf("checks without a finding: %q", names)
		}
	})
}

func TestDoctorNamesMissingPrivileges(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		address := server.Database(t)
		admin := pool(t, address)
		if _, err := New(admin, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: testLanes}); err != nil {
			t.Fatal(err)
		}
		database := address[strings.LastIndex(address, "/")+1:]
		user := "doctor_" + database[2:]
		grant := func(queries ...string) {
			t.Helper()
			for _, query := range queries {
				if _, err := admin.ExecContext(t.Context(), query+" TO "+user+"@'127.0.0.1'"); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := admin.ExecContext(t.Context(), "CREATE USER "+user+"@'127.0.0.1'"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = admin.ExecContext(context.WithoutCancel(t.Context()), "DROP USER "+user+"@'127.0.0.1'") })
		grant("GRANT SELECT ON " + database + ".*")
		look := func(relay *Store) (all string, worst ops.Severity) {
			t.Helper()
			found, err := relay.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"privileges"}, Timeout: 5 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				all, worst = all+f.What+"\n", max(worst, f.Severity)
			}
			return all, worst
		}
		open := func() *Store { return New(pool(t, strings.Replace(address, "root@", user+"@", 1)), nil) }
		all, worst := look(open())
		for _, want := range []string{"lacks the privilege PROCESS", "lacks INSERT, UPDATE, DELETE on postrider_progress", "lacks UPDATE on postrider_info"} {
			if !strings.Contains(all, want) {
				t.Errorf("no finding %q among\n%s", want, all)
			}
		}
		if worst != ops.Critical {
			t.Errorf("worst %v", worst)
		}
		grant("GRANT SELECT, INSERT, UPDATE, DELETE ON "+database+".*", "GRANT PROCESS ON *.*")
		relay := open() // a session keeps the rights that it began with
		if all, worst := look(relay); worst != ops.OK {
			t.Errorf("after the grants of docs/mysql.md:\n%s", all)
		}
		if _, err := relay.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); err != nil {
			t.Errorf("a user without a finding: %v", err)
		}
	})
}

func TestNumbersOfAVersion(t *testing.T) {
	for version, want := range map[string][3]int{"8.0.15": {8, 0, 15}, "9.7.4-commercial": {9, 7, 4}, "10.11.19-MariaDB-log": {10, 11, 19}, "odd": {}} {
		if got := numbersOf(version); got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
}

// The commands of a finding name its pipe: the number of a dead letter means another message in main.
func TestFixesNameThePipe(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		s := New(db, &Options{Pipe: "audit", MakePipe: true})
		lease(t, s, "a")
		if _, err := db.ExecContext(t.Context(), strings.Replace(deadLetter, "'main'", "'audit'", 1)); err != nil {
			t.Fatal(err)
		}
		found, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Pipes: []string{"audit"}, Only: []string{"parked"}})
		if err != nil || len(found) != 1 || !strings.Contains(found[0].Fix, "postrider --pipe audit dead show 1") {
			t.Errorf("%+v, error %v", found, err)
		}
	})
}
