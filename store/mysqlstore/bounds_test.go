package mysqlstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// manyParked has 8,000 dead letters of 8,000 keys, 2,600 messages that wait behind one of them,
// 2,600 scheduled ones, 50 that are tried again, and 2,600 messages of each lane ahead.
const manyParked = `INSERT INTO postrider_outbox (topic, created_at) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
	SELECT 't', {{now}} - 7200000000 + a.i * 100 + b.i FROM n AS a JOIN n AS b WHERE a.i < 60;
INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, id, topic, ` + "`key`" + `, type, payload, content_type, headers, version, schema_version, created_at)
	WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 199)
	SELECT 'main', x.seq, x.seq % 2, x.state, x.state IN ('dead', 'retry'), {{now}} + 3600000000, 1, 'rejected', CONCAT('C', x.seq % 7), 'e', {{now}} - 3600000000, {{now}}, LPAD(x.seq, 36, '0'), 't',
	CASE WHEN x.state = 'waiting' THEN 'k1' WHEN x.state = 'scheduled' THEN '' ELSE CONCAT('k', x.seq) END, '', '', '', '{}', 0, 0, {{now}} - 3600000000
	FROM (SELECT a.i * 100 + b.i + 1 AS seq, CASE WHEN a.i < 80 THEN 'dead' WHEN a.i < 106 THEN 'waiting' WHEN a.i < 132 THEN 'scheduled' ELSE 'retry' END AS state
		FROM n AS a JOIN n AS b WHERE b.i < 100 AND (a.i < 132 OR a.i = 132 AND b.i < 50)) AS x`

// Answers cost what they show: a million messages that are set aside do not slow them down. A
// count that has an end is marked.
func TestAnswersReadABoundedNumberOfRows(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const lanes, limit = 2, 100
		pool := newOutbox(t, server, lanes)
		for _, text := range strings.Split(manyParked, ";\n") {
			if _, err := pool.ExecContext(t.Context(), strings.ReplaceAll(text, "{{now}}", now)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pool.ExecContext(t.Context(), `ANALYZE TABLE postrider_outbox, postrider_parked`); err != nil {
			t.Fatal(err)
		}
		pool.SetMaxOpenConns(1) // the counters are the session's
		read := func() (n int64) {
			rows, err := pool.QueryContext(t.Context(), `SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_key', 'Handler_read_next', 'Handler_read_prev', 'Handler_read_first', 'Handler_read_last', 'Handler_read_rnd', 'Handler_read_rnd_next')`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var name string
				var one int64
				if err := rows.Scan(&name, &one); err != nil {
					t.Fatal(err)
				}
				n += one
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return n
		}
		own := read()
		own = read() - own // what a look at the counters costs
		reads := func(what string, most int64, fn func() error) {
			t.Helper()
			before := read()
			if err := fn(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			n := read() - before - own
			t.Logf("%s reads %d rows", what, n)
			if n > most {
				t.Errorf("%s reads %d rows, want at most %d", what, n, most)
			}
		}
		office := New(pool, &Options{CountLimit: limit}).Office()
		var st ops.Status
		// Counted rows are read once from the table and once from the list of them.
		reads("status", 2*lanes*limit+3*(3*5*limit+50)+400, func() (err error) {
			st, err = office.Admin.Status(t.Context())
			return err
		})
		if !st.Capped || !st.ParkedCapped || st.Parked["dead"] != 5*limit || st.Parked["scheduled"] != 5*limit || st.Parked["waiting"] != 5*limit || st.Parked["retry"] != 50 || st.Lag < 2*time.Hour ||
			st.Lanes[0].Parked < 400 {
			t.Errorf("status: %+v", st)
		}
		var found []ops.Finding
		reads("doctor, check parked", 3*3*2000, func() (err error) {
			found, err = office.Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"parked"}, Timeout: time.Minute, Limits: ops.Limits{Lag: time.Minute}})
			return err
		})
		if len(found) != 10 || !strings.HasPrefix(found[0].What, "at least 286 messages are dead (rejected C") || found[0].Why != "2000 keys are blocked by dead letters, with 2000 messages" {
			t.Errorf("%d findings of the check parked: %+v", len(found), found)
		}
		reads("pipe list", 2*10_000+200, func() error {
			pipes, err := office.Pipes.Pipes(t.Context())
			if err == nil && (pipes[0].Parked != ops.ParkedCount || !pipes[0].ParkedCapped) {
				t.Errorf("pipes %+v", pipes)
			}
			return err
		})
		for _, q := range []ops.ParkedQuery{
			{State: store.Dead}, {State: store.Retry}, {State: store.Dead, Code: "C3"}, {State: store.Dead, Topic: "t"}, {State: store.Waiting, Key: "k1"}, {State: store.Dead, AfterSeq: 5000},
		} {
			q.Limit, q.Bare = 50, true
			most := int64(60)
			if q.Key != "" { // those of the key are sorted
				most = 2750
			}
			reads(fmt.Sprintf("dead list %+v", q), most, func() error {
				list, err := office.Admin.Parked(t.Context(), q)
				if err == nil && len(list) != 50 {
					t.Errorf("%+v: %d records", q, len(list))
				}
				return err
			})
		}
		for _, text := range []string{`UPDATE postrider_parked SET topic = 'u' WHERE state = 'dead' AND (code <> 'C3' OR seq = 7997)`, `ANALYZE TABLE postrider_parked`} {
			if _, err := pool.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		reads("dead list, one of a code and a topic", 60, func() error {
			found, err := office.Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Dead, Code: "C3", Topic: "u", Limit: 50, Bare: true})
			if err == nil && len(found) != 1 {
				t.Errorf("%d dead letters of the code and the topic, want 1", len(found))
			}
			return err
		})
		reads("message show", 150, func() error {
			life, err := office.Finder.Message(t.Context(), ops.MessageQuery{ID: "00000000-0000-0000-0000-000000000001"})
			if !errors.Is(err, store.ErrNotFound) {
				t.Errorf("found %+v, error %v", life, err)
			}
			return nil
		})
		var id string
		if err := pool.QueryRowContext(t.Context(), `SELECT id FROM postrider_outbox WHERE seq = 5500`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		reads("message show of a row", 2*2*2000+1024+200, func() error {
			_, err := office.Finder.Message(t.Context(), ops.MessageQuery{ID: id, At: time.Now().Add(-2 * time.Hour)})
			return err
		})
		reads("key show", 3*2*ops.KeyCount+200, func() error {
			life, err := office.Finder.Key(t.Context(), "k1")
			if err == nil && (!life.Capped || life.Parked["waiting"] != ops.KeyCount || life.Head == nil || life.Head.Seq != 1) {
				t.Errorf("key k1: %+v", life)
			}
			return err
		})
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "mysql.md"))
		if err != nil {
			t.Fatal(err)
		}
		queries := regexp.MustCompile(`(?m)^SELECT .*\bpostrider_(parked|lane)\b.*;$`).FindAllString(string(text), -1)
		if len(queries) != 3 {
			t.Errorf("%d documented queries, want 3", len(queries))
		}
		for _, query := range queries {
			reads(query, 100, func() error {
				_, err := pool.ExecContext(t.Context(), query)
				return err
			})
		}
	})
}
