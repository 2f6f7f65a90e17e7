package mysqlstore

import (
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	boxdb "github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

func lease(t *testing.T, s *Store, boot string) store.Grant {
	t.Helper()
	g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, Instance: boot, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestASettlementIsWholeOrNotAtAll(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		s := New(db, nil)
		g := lease(t, s, "a")
		st := store.Settlement{
			BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: g.Lanes[0].Position,
			Park: []store.Park{{Seq: 1, State: store.Dead, Message: postrider.Message{ID: "x", Topic: "t"}, Class: strings.Repeat("x", 65)}},
		}
		if _, err := s.Settle(t.Context(), []store.Settlement{st}); err == nil {
			t.Fatal("a record that does not fit was parked")
		}
		// Nothing is left open: another session gets the row at once.
		if _, err := db.ExecContext(t.Context(), `UPDATE postrider_progress SET delivered = delivered + 0 WHERE lane = 0`); err != nil {
			t.Fatal(err)
		}
		st.Park[0].Class = "rejected"
		if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			t.Fatalf("the same epoch after a failure: lost %v, error %v", lost, err)
		}
	})
}

func TestAUserWhoSeesOnlyItselfIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		u := server.Database(t)
		admin, err := OpenDB(u, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		if _, err := New(admin, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2}); err != nil {
			t.Fatal(err)
		}
		database := u[strings.LastIndex(u, "/")+1:]
		for _, query := range []string{
			"CREATE USER IF NOT EXISTS shy@'%' IDENTIFIED BY 'secret'", "REVOKE ALL PRIVILEGES, GRANT OPTION FROM shy@'%'",
			"GRANT ALL ON " + database + ".* TO shy@'%'",
		} {
			if _, err := admin.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		shy, err := OpenDB(strings.Replace(u, "root@", "shy:secret@", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer shy.Close()
		req := store.LeaseRequest{BootID: "a", TTL: time.Minute}
		if _, err := New(shy, nil).Lease(t.Context(), req); !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), "GRANT PROCESS ON *.* TO 'shy'@'%'") {
			t.Fatalf("error %v", err)
		}
		if _, err := admin.ExecContext(t.Context(), "GRANT PROCESS ON *.* TO shy@'%'"); err != nil {
			t.Fatal(err)
		}
		lease(t, New(shy, nil), "a")
	})
}

func TestServersWithSeveralCountersAreRefused(t *testing.T) {
	good := map[string]string{"version": "8.4.0", "auto_increment_increment": "1", "read_only": "OFF"}
	if err := refused(good); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"version": "8.0.11-TiDB-v8", "auto_increment_increment": "2", "read_only": "ON", "wsrep_on": "ON",
	} {
		bad := map[string]string{name: value}
		for k, v := range good {
			if k != name {
				bad[k] = v
			}
		}
		var unusable *store.UnusableError
		if err := refused(bad); !errors.As(err, &unusable) || unusable.Fix == "" {
			t.Errorf("%s = %s: error %v", name, value, err)
		}
	}
}

// The lanes of keys are frozen: the server's CRC32 is that of IEEE.
func TestLanesAreThoseOfTheKeysBytes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const lanes = 61
		db := newOutbox(t, server, lanes)
		keys := []string{"a", "A", "a ", "a  ", "é", "日本", strings.Repeat("k", 512), "order-1", "'", `\`}
		for _, key := range keys {
			if _, err := db.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, payload) VALUES ('t', ?, '')", []byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		raw := []byte{0xff, 0xfe}
		if _, err := db.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, payload) VALUES ('t', ?, '')", raw); err != nil {
			t.Fatal(err)
		}
		for _, key := range append(keys, string(raw)) {
			got, err := list[uint32](t.Context(), db, "SELECT lane FROM postrider_outbox WHERE `key` = ?", []byte(key))
			if want := crc32.ChecksumIEEE([]byte(key)) % lanes; err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("key %q has lanes %v, want %d; error %v", key, got, want, err)
			}
		}
		if _, err := db.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, payload, lane) VALUES ('t', 'a', '', 3)"); err == nil {
			t.Error("a writer chose the lane")
		}
		if _, err := db.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, id) VALUES ('t', 'no uuid')"); err == nil {
			t.Error("an id that is no UUID was taken")
		}
	})
}

// Promises: L
func TestACrashIsAnotherHistory(t *testing.T) {
	server := testserver.StartMySQL(t, versions()[0])
	db := newOutbox(t, server, 2)
	s := New(db, nil)
	before := lease(t, s, "a").Identity
	if again := lease(t, s, "a").Identity; again != before {
		t.Fatalf("identity %s, then %s", before, again)
	}
	// A start is told to the second.
	waitFor(t, "the server's clock shows another second than at its start", func() (later bool) {
		err := db.QueryRowContext(t.Context(), `SELECT `+boxdb.Now+` DIV 1000000 > started DIV 1000000 FROM postrider_info`).Scan(&later)
		return err == nil && later
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if _, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 1}}); !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a read by who leased before, %s: %v", when, err)
		}
		for _, keys := range [][]string{nil, {"a"}} {
			if _, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 1, Parked: true, Keys: keys}}); !errors.Is(err, store.ErrIdentity) {
				t.Errorf("a read of what is parked by who leased before, %s: %v", when, err)
			}
		}
		if _, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: 0, Epoch: 1}}); !errors.Is(err, store.ErrIdentity) {
			t.Errorf("a settlement by who leased before, %s: %v", when, err)
		}
	}
	refused("before the next lease")
	g, err := New(db, nil).Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
	if err != nil || g.Identity == before {
		t.Fatalf("identity %s after a crash, error %v", g.Identity, err)
	}
	refused("behind it")
}

// The server's start is a witness that no clock moves: neither a session whose time lies before it, nor
// the calls that it counts.
func TestAClockThatMovesIsNoRestart(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		ctx := t.Context()
		db := newOutbox(t, server, 2)
		db.SetMaxOpenConns(1)
		s := New(db, nil)
		before := lease(t, s, "a").Identity
		started := func() (us int64) {
			t.Helper()
			if err := db.QueryRowContext(ctx, `SELECT started FROM postrider_info`).Scan(&us); err != nil {
				t.Fatal(err)
			}
			return us
		}
		first := started()
		for _, clock := range []string{"1000000000", "DEFAULT", "2100000000", "DEFAULT"} {
			if _, err := db.ExecContext(ctx, `SET SESSION timestamp = `+clock); err != nil {
				t.Fatal(err)
			}
			if g := lease(t, s, "a"); g.Identity != before {
				t.Errorf("timestamp %s: identity %s, was %s", clock, g.Identity, before)
			}
			if _, err := s.Read(ctx, []store.LaneRead{{Lane: 0, MaxRecords: 1}}); err != nil {
				t.Errorf("timestamp %s: %v", clock, err)
			}
		}
		for _, calls := range []struct {
			us      int64
			another bool
		}{{0, false}, {sameRun/2 + 1000, false}, {sameRun - 1000, false}, {sameRun + 1000, true}, {-1_000_000, true}} {
			was := lease(t, s, "a").Identity
			if _, err := db.ExecContext(ctx, `UPDATE postrider_info SET started = ? - ?`, first, calls.us); err != nil {
				t.Fatal(err)
			}
			if g := lease(t, s, "a"); (g.Identity != was) != calls.another {
				t.Errorf("a start that is %d us later: identity %s, was %s", calls.us, g.Identity, was)
			}
			if now := started(); now < first || now > first+100_000 {
				t.Errorf("a start that is %d us later: started is %d, was %d", calls.us, now, first)
			}
		}
	})
}

// A heartbeat whose statement the server chose as the victim of a deadlock is repeated: an
// instance must not lose its lanes for that.
//
// Promises: S
func TestALeaseIsRepeatedAfterADeadlock(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		s := New(db, nil)
		lease(t, s, "a")
		if _, err := db.ExecContext(t.Context(), `UPDATE postrider_progress SET owner = ''`); err != nil { // so that the next heartbeat takes both lanes at once
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		write := func(query string, args ...any) {
			t.Helper()
			if _, err := tx.ExecContext(t.Context(), query, args...); err != nil {
				t.Fatal(err)
			}
		}
		for at := range 100 { // the server ends the transaction that has written less
			write(`INSERT INTO postrider_times (pipe, at, sent, high, low, lanes) VALUES ('other', ?, 0, 0, 0, '')`, at)
		}
		const lock = `UPDATE postrider_progress SET delivered = delivered + 1 WHERE pipe = ? AND lane = ?`
		write(lock, DefaultPipe, 1)
		done := make(chan error, 1)
		go func() {
			_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute})
			done <- err
		}()
		// A statement that many looks in a row find is waiting.
		for seen := 0; seen < 20; {
			var running int
			err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM information_schema.processlist
				WHERE db = DATABASE() AND info LIKE 'UPDATE postrider_progress SET owner%'`).Scan(&running)
			if err != nil {
				t.Fatal(err)
			}
			if seen++; running == 0 {
				seen = 0
			}
			select {
			case err := <-done:
				t.Fatalf("the heartbeat did not wait for the other transaction's row: %v", err)
			default:
			}
		}
		write(lock, DefaultPipe, 0)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("lease: %v", err)
		}
	})
}
