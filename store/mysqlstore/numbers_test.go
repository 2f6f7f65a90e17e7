package mysqlstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func wantReset(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), "began again below") || !strings.Contains(err.Error(), "migrate --adopt") {
		t.Errorf("%s: error %v", what, err)
	}
}

// An outbox that was truncated is refused, also when its numbers have come up again, and
// delivers everything once it was adopted.
//
// Promises: L
func TestATruncatedOutboxIsRefusedAndAdopted(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		exec := func(query string, times int) {
			t.Helper()
			for range times {
				if _, err := db.ExecContext(t.Context(), query); err != nil {
					t.Fatal(err)
				}
			}
		}
		adopt := func() ([]ops.Step, error) {
			return New(db, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true})
		}
		exec(insert, 5)
		s := New(db, nil)
		g := lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) != 5 {
			t.Fatalf("read %v", got)
		}
		if steps, err := adopt(); err != nil || len(steps) > 0 {
			t.Fatalf("a healthy outbox was adopted: %v, error %v", steps, err)
		}
		exec(`TRUNCATE postrider_outbox`, 1)
		exec(insert, 2)
		req := store.LeaseRequest{BootID: "a", TTL: time.Minute}
		_, err := s.Lease(t.Context(), req)
		wantReset(t, "a lease", err)
		exec(insert, 10)
		_, err = New(db, nil).Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantReset(t, "a lease when the numbers are above every position again", err)
		if st, err := s.Office().Admin.Status(t.Context()); err != nil || len(st.Alarms) != 1 || !strings.Contains(st.Alarms[0], "migrate --adopt") {
			t.Errorf("alarms %q, error %v", st.Alarms, err)
		}
		if _, err := adopt(); err == nil || !strings.Contains(err.Error(), "relays are at work: a") {
			t.Fatalf("adopted beside a relay: error %v", err)
		}
		exec(`DELETE FROM postrider_relay`, 1)
		if steps, err := adopt(); err != nil || len(steps) != 1 {
			t.Fatalf("steps %v, error %v", steps, err)
		}
		exec(insert, 1)
		if steps, err := adopt(); err != nil || len(steps) > 0 {
			t.Fatalf("it was adopted twice: %v, error %v", steps, err)
		}
		s = New(db, nil)
		g = lease(t, s, "c")
		got := carry(t, s, "c", &g)
		if len(got) != 13 || got[0] != 6 || got[11] != 17 {
			t.Errorf("read %v", got)
		}
	})
}

// A relay that was busy while the numbers came up again sees another row where it has read one.
func TestARowInThePlaceOfOneThatWasReadIsNoticed(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		s := New(db, nil)
		for _, query := range []string{insert, insert, "TRUNCATE postrider_outbox", insert, insert, insert} {
			if strings.HasPrefix(query, "TRUNCATE") {
				g := lease(t, s, "a")
				carry(t, s, "a", &g)
			}
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10}})
		wantReset(t, "a read", err)
		_, err = New(db, nil).Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
		wantReset(t, "a lease", err)
	})
}

// A failover happens during a read. Rows that it read from the old history are no witness of the new one, which
// has other rows with the same numbers.
func TestARowOfTheOldHistoryIsNoWitness(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const many = 3000 // rows, which are too large for a span: their bodies are asked for in two statements
		db := newOutbox(t, server, 1)
		exec := func(query string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		rows := func() {
			for from := 0; from < many; from += 1000 {
				exec(fmt.Sprintf(`INSERT INTO postrider_outbox (seq, topic, payload) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000) SELECT i + %d, 't', REPEAT('x', 3000) FROM r`, from))
			}
		}
		rows()
		read := []store.LaneRead{{Lane: 0, MaxRecords: 10_000}}
		var s *Store
		asked := 0
		s = New(hooked(t, urlOf(t, server, db), func(query string) {
			if !strings.HasPrefix(query, "SELECT seq, id") {
				return
			}
			if asked++; asked != 2 {
				return
			}
			for _, query := range []string{`DELETE FROM postrider_outbox`, `UPDATE postrider_info SET epoch = epoch + 1`} {
				exec(query)
			}
			lease(t, s, "a")
			if _, err := s.Read(t.Context(), read); err != nil {
				t.Error(err)
			}
		}), nil)
		lease(t, s, "a")
		if _, err := s.Read(t.Context(), read); err != nil || asked < 2 {
			t.Fatalf("%d questions for bodies, error %v", asked, err)
		}
		rows()
		n := 0
		for more := true; more; {
			b, err := s.Read(t.Context(), read)
			if err != nil {
				t.Fatal(err)
			}
			n, more, read[0].After = n+len(b[0].Messages), b[0].More, b[0].Position
		}
		if n != many {
			t.Errorf("%d rows were read, want %d", n, many)
		}
		lease(t, s, "a")
	})
}

// Rows that the table refuses, and has all the same, hold nobody up.
func TestOddRowsAreReadAndParked(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		checks, err := list[string](t.Context(), db, `SELECT CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS
			WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'postrider_outbox' AND CONSTRAINT_TYPE = 'CHECK'`)
		if err != nil || len(checks) < 6 {
			t.Fatalf("checks %v, error %v", checks, err)
		}
		for _, name := range checks {
			if !strings.HasPrefix(name, "postrider_") {
				continue
			}
			if _, err := db.ExecContext(t.Context(), "ALTER TABLE postrider_outbox DROP CONSTRAINT "+name); err != nil {
				t.Fatal(err)
			}
		}
		odd := map[string]string{
			"headers": `'{"a": '`, "headers ": `'[1]'`, "headers  ": "'{\"a\": \"x\ny\", \"n\": 7}'", "headers   ": "''",
			"id": `X'FFFE'`, "`key`": `X'FF00'`, "created_at": "-9223372036854775808", "created_at ": "9223372036854775807",
			"not_before": "9223372036854775807", "version": "-5", "schema_version": "-2147483648", "payload": "''",
		}
		for column, value := range odd {
			if _, err := db.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO postrider_outbox (topic, type, %s) VALUES ('t', 'x', %s)", strings.TrimSpace(column), value)); err != nil {
				t.Fatal(column, err)
			}
		}
		s := New(db, nil)
		g := lease(t, s, "a")
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 100}})
		if err != nil || len(b[0].Messages) != len(odd) {
			t.Fatalf("%d of %d rows, error %v", len(b[0].Messages), len(odd), err)
		}
		st := store.Settlement{BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: b[0].Position}
		var headers []string
		for i, m := range b[0].Messages {
			if y := m.Time.Year(); y < 1 || y > 9999 {
				t.Errorf("a time in the year %d", y)
			}
			for name, value := range m.Headers {
				headers = append(headers, name+"="+value)
			}
			st.Park = append(st.Park, store.Park{Seq: b[0].Meta[i].Seq, Message: m, State: store.Dead})
		}
		slices.Sort(headers)
		if want := []string{"a=x y", "n=7", unreadable + "=", unreadable + "=[1]", unreadable + `={"a": `}; !slices.Equal(headers, want) {
			t.Errorf("headers %q, want %q", headers, want)
		}
		if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, error %v", lost, err)
		}
		parked, err := s.Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
		if err != nil || len(parked) != len(b[0].Messages) {
			t.Fatalf("%d parked, error %v", len(parked), err)
		}
		same := func(a, b postrider.Message) bool { return a.ID == b.ID && a.Key == b.Key && a.Time.Equal(b.Time) }
		for i := range parked {
			if !same(parked[i].Message, b[0].Messages[i]) {
				t.Errorf("%+v was parked as %+v", b[0].Messages[i], parked[i].Message)
			}
		}
	})
}

// A first migration that was broken off is finished for the lanes that it began with.
func TestABrokenMigrationKeepsItsLanes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newDB(t, server)
		// It dies behind its first tables.
		text, err := script(ops.Step{Version: 1, Name: "outbox"}, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range split(text)[:4] {
			if _, err := db.ExecContext(t.Context(), one); err != nil {
				t.Fatal(err)
			}
		}
		m := New(db, nil).Office().Migrator
		if _, err := m.Migrate(t.Context(), ops.MigrateRequest{Lanes: 9}); !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), "--lanes 7") {
			t.Fatalf("error %v", err)
		}
		if _, err := m.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		if g := lease(t, New(db, nil), "a"); g.Total != 7 || len(g.Lanes) != 7 {
			t.Errorf("%d lanes, %d were leased", g.Total, len(g.Lanes))
		}
	})
}
