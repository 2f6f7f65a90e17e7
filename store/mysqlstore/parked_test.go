package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	boxdb "github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// parkedRows parks n*n records of lane 0 with the numbers above a first one. The expressions may use i,
// which counts from 1.
func parkedRows(t *testing.T, db *sql.DB, n, above int, state, captures, key, due string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, last_attempt, id, topic, `key`, type, payload, content_type, headers, version, schema_version, created_at)"+
		" WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < %d)"+
		" SELECT 'main', %d + i, 0, %s, %s, %s, 1, 'c', 'c', 'e', 0, UUID(), 't', %s, '', '', '', '{}', 0, 0, 0 FROM (SELECT (a.i - 1) * %d + b.i AS i FROM r AS a JOIN r AS b) AS x",
		n, above, state, captures, due, key, n))
	if err != nil {
		t.Fatal(err)
	}
}

// A read of named queues costs what it returns: thousands of records in other queues, behind the ones
// returned, or scheduled for later cost nothing.
//
// Promises: S
func TestAReadOfNamedQueuesCostsWhatItReturns(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const most = 1000
		db := newOutbox(t, server, 1)
		db.SetMaxOpenConns(1) // the counters are the session's
		parkedRows(t, db, 142, 0, "CASE WHEN i = 1 THEN 'retry' ELSE 'waiting' END", "i = 1", "'k1'", boxdb.Now)
		parkedRows(t, db, 1, 30_000, "'retry'", "1", "'k2'", boxdb.Now)
		parkedRows(t, db, 142, 40_000, "'scheduled'", "0", "''", boxdb.Now+" + 3600000000")
		parkedRows(t, db, 1, 70_000, "'retry'", "0", "'k3'", boxdb.Now)
		parkedRows(t, db, 142, 80_000, "'dead'", "0", "'k4'", boxdb.Now)
		s := New(db, nil)
		for _, c := range []struct {
			keys []string
			want []int64
		}{
			{[]string{}, []int64{70_001}},
			{[]string{"k2"}, []int64{30_001, 70_001}},
			{[]string{"k1"}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 70_001}},
			{[]string{"k1", "k2"}, []int64{1, 2, 3, 4, 5, 30_001, 70_001}},
		} {
			before := handlerReads(t, db)
			b, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10, Parked: true, Keys: c.keys}})
			if err != nil {
				t.Fatal(err)
			}
			if got := handlerReads(t, db) - before; got > most {
				t.Errorf("a read of the queues %q reads %d rows, want at most %d", c.keys, got, most)
			}
			var seqs []int64
			for _, m := range b[0].Meta {
				seqs = append(seqs, m.Seq)
			}
			if slices.Sort(seqs); !slices.Equal(seqs, c.want) {
				t.Errorf("a read of the queues %q returns %v, want %v", c.keys, seqs, c.want)
			}
		}
	})
}

// The server ends each statement of a parked read when the caller's time is over: a statement that goes
// on after its client has gone would keep the server busy, and holes open.
//
// Promises: S
func TestStatementsOfAParkedReadHaveAnEnd(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		url := migrated(t, server, 1)
		parkedRows(t, pool(t, url), 2, 0, "CASE WHEN i = 1 THEN 'retry' ELSE 'waiting' END", "i = 1", "'k'", boxdb.Now)
		seen := 0
		db := hooked(t, url, func(query string) {
			if strings.Contains(query, "postrider_parked") {
				if seen++; !strings.Contains(query, "MAX_EXECUTION_TIME(") || !strings.Contains(query, "max_statement_time=") {
					t.Errorf("a statement without an end: %.200s", query)
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for _, keys := range [][]string{nil, {"k"}} {
			b, err := New(db, nil).Read(ctx, []store.LaneRead{{Lane: 0, MaxRecords: 10, Parked: true, Keys: keys}})
			if err != nil || len(b[0].Messages) != 4 {
				t.Errorf("batches %+v, error %v", b, err)
			}
		}
		if seen < 4 {
			t.Errorf("%d statements", seen)
		}
	})
}
