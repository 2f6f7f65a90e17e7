package pgstore_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// counted counts the entries that questions read of the outbox and of what is set aside.
type counted struct {
	*db
	pool *pgxpool.Pool // of one connection: statistics are a connection's own at first
}

func (d *db) counting() *counted {
	d.Helper()
	cfg := d.pool.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(pool.Close)
	return &counted{d, pool}
}

func (c *counted) sums() (outbox, parked, whole int64) {
	c.Helper()
	if _, err := c.pool.Exec(c.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		c.Fatal(err)
	}
	err := c.pool.QueryRow(c.Context(), `SELECT sum(i.idx_tup_read) FILTER (WHERE i.relname = 'outbox')::bigint, sum(i.idx_tup_read) FILTER (WHERE i.relname = 'parked')::bigint,
 (SELECT sum(t.seq_tup_read)::bigint FROM pg_stat_user_tables t WHERE t.schemaname = $1 AND t.relname IN ('outbox', 'parked'))
FROM pg_stat_user_indexes i WHERE i.schemaname = $1`, c.schema).Scan(&outbox, &parked, &whole)
	if err != nil {
		c.Fatal(err)
	}
	return outbox, parked, whole
}

// reads fails when ask reads a fifth more entries than that, or a whole table: the
// numbers are what an answer needs, and each table has more still.
func (c *counted) reads(what string, outbox, parked int64, ask func() error) {
	c.Helper()
	outbox, parked = outbox+outbox/5, parked+parked/5
	o, p, w := c.sums()
	if err := ask(); err != nil {
		c.Errorf("%s: %v", what, err)
		return
	}
	o2, p2, w2 := c.sums()
	if o2-o > outbox || p2-p > parked || w2 > w {
		c.Errorf("%s read %d entries of the outbox, %d of parked and %d rows without an index; want at most %d, %d and 0", what, o2-o, p2-p, w2-w, outbox, parked)
	}
}

// manyParked is some of everything in two lanes: 40,000 messages behind the cursors, since
// the planner sorts the few of a small lane instead of taking them from the index in order;
// 14,000 dead letters of four codes, in 2,200 keys of which half are blocked; and some of
// each other kind.
const manyParked = `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'p' || g % 500, 'm' FROM generate_series(1, 40000) g;
INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, created_at, not_before,
 version, schema_version, id, topic, key, type, content_type, headers, payload)
SELECT 'main', ((hashtextextended(s.key, 0) & 9223372036854775807) % 2)::smallint, 1000000 + g, s.state, s.state = 'retry' OR s.state = 'dead' AND g % 2 = 0,
 now() + interval '1 day', 5, 'rejected', CASE WHEN s.state IN ('dead', 'retry') THEN 'C' || g % 4 ELSE '' END, 'no', now() - interval '1 hour', now(), now() - interval '1 hour',
 CASE WHEN s.state = 'scheduled' THEN now() + interval '1 day' END, 0, 0, gen_random_uuid(), 't', s.key, 'm', '', '{}', ''
FROM generate_series(1, 15100) g CROSS JOIN LATERAL (SELECT CASE WHEN g <= 14000 THEN 'dead' WHEN g <= 14050 THEN 'retry' WHEN g <= 14100 THEN 'waiting' ELSE 'scheduled' END AS state,
 CASE WHEN g <= 14000 THEN 'd' || g % 2200 WHEN g <= 14100 THEN 'r' || g % 50 ELSE 's' || g END AS key) s;
ANALYZE box.outbox; ANALYZE box.parked`

// What an operator asks reads a bounded number of index entries, and no table as a
// whole, however many dead letters and messages there are.
func TestAnswersReadABoundedNumberOfRows(t *testing.T) {
	const lanes, limit = 2, 100
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, lanes)
		d.owner("a")
		for _, text := range strings.Split(manyParked, ";") {
			d.exec(text)
		}
		c := d.counting()
		office := pgstore.New(c.pool, &pgstore.Options{Schema: d.schema, CountLimit: limit}).Office()
		var st ops.Status
		c.reads("status", lanes*(limit+10), 2*5*limit+lanes*10+100, func() (err error) {
			st, err = office.Admin.Status(t.Context())
			return err
		})
		if !st.Capped || !st.ParkedCapped || st.Parked["dead"] != 5*limit || st.Parked["scheduled"] != 5*limit || st.Parked["retry"] != 50 || st.Parked["waiting"] != 50 || st.Lag < time.Hour {
			t.Errorf("status: %+v", st)
		}
		var found []ops.Finding
		c.reads("doctor, check parked", 0, 4*2001+2000+200, func() (err error) {
			found, err = office.Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"parked"}, Again: time.Millisecond, Timeout: time.Minute, Limits: ops.Limits{Lag: time.Minute}})
			return err
		})
		if len(found) != 8 || !strings.HasPrefix(found[0].What, "2000+ messages are dead (C") || found[0].Data["lower_bounds"] != true ||
			!regexp.MustCompile(`^1\d{3}\+? keys are blocked by dead letters, with 50 messages$`).MatchString(found[0].Why) {
			t.Errorf("%d findings of the check parked: %+v", len(found), found)
		}
		c.reads("pipe list", 0, ops.ParkedCount, func() error {
			pipes, err := office.Pipes.Pipes(t.Context())
			if err == nil && (pipes[0].Parked != ops.ParkedCount || !pipes[0].ParkedCapped) {
				t.Errorf("pipes %+v", pipes)
			}
			return err
		})
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "postgres.md"))
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		for _, query := range regexp.MustCompile(`(?m)^SELECT .*\bpostrider\.(messages|states|lane)\b.*;$`).FindAllString(string(text), -1) {
			asked++
			outbox, parked := int64(0), int64(60)
			switch {
			case strings.Contains(query, "postrider.states"):
				outbox, parked = lanes*2000, 10_000+1000+100
			case strings.Contains(query, "outbox_seq"): // the window of the owner, in two states, and fifty messages
				outbox, parked = 2*lanes*1024+60, 60
			case strings.Contains(query, "'Failed'"):
				parked = 120
			}
			c.reads(query, outbox, parked, func() error {
				_, err := c.pool.Exec(t.Context(), strings.ReplaceAll(query, "postrider.", `"`+d.schema+`".`))
				return err
			})
		}
		if asked != 5 {
			t.Errorf("%d documented queries of the views, want 5", asked)
		}
		if n := d.count(`SELECT messages FROM box.states WHERE pipe = 'main' AND state = 'DeadLetter' AND NOT exact`); n != 10_000 {
			t.Errorf("%d dead letters in the view states, want 10000", n)
		}
		c.exec(`UPDATE box.parked SET topic = 'u' WHERE state = 'dead' AND code <> 'C3'; UPDATE box.parked SET topic = 'u' WHERE seq = (SELECT max(seq) FROM box.parked WHERE code = 'C3' AND state = 'dead'); ANALYZE box.parked`)
		c.reads("dead list, one of a code and a topic", 0, 60, func() error {
			found, err := office.Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Dead, Code: "C3", Topic: "u", Limit: 50, Bare: true})
			if err == nil && len(found) != 1 {
				t.Errorf("%d dead letters of the code and the topic, want 1", len(found))
			}
			return err
		})
	}
}

// What a status reads of a backlog does not grow with it, nor with the number of lanes above
// 16, without statistics of the table too, and counts are marked as lower bounds then. A lane
// with many messages is counted up to the limit where others have few.
func TestAStatusOfABacklogIsBounded(t *testing.T) {
	const lanes, limit = 64, 100
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, lanes)
		d.owner("a")
		d.exec(`ALTER TABLE box.outbox SET (autovacuum_enabled = off)`)
		c := d.counting()
		plain := pgstore.New(c.pool, &pgstore.Options{Schema: d.schema, CountLimit: limit})
		filtered := pgstore.New(c.pool, &pgstore.Options{Schema: d.schema, CountLimit: limit, Pipe: "f"})
		if _, err := plain.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "f", From: ops.FromBeginning, Filter: store.Filter{Topics: []string{"t"}}, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			what, insert   string
			pending, reads int64
		}{
			{"one lane has many", `INSERT INTO box.outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 3000)`, limit, 3 * limit},
			{"all lanes have many", `INSERT INTO box.outbox (topic) SELECT 't' FROM generate_series(1, 30000)`, 16 * limit, 16*limit + 4*lanes},
		} {
			d.exec(step.insert)
			for pipe, s := range map[string]*pgstore.Store{"plain": plain, "filtered": filtered} {
				var st ops.Status
				c.reads("status, "+pipe+", "+step.what, step.reads, 0, func() (err error) {
					st, err = s.Office().Admin.Status(t.Context())
					return err
				})
				if st.Pending != step.pending || !st.Capped || st.Lag <= 0 {
					t.Errorf("%s, %s: pending %d, lower bound %v, lag %v; want %d and true", pipe, step.what, st.Pending, st.Capped, st.Lag, step.pending)
				}
			}
		}
	}
}

// An audit that a relay repeats reads each new row once, and of a backlog a bounded number of
// pending rows besides.
//
// Promises: Q
func TestARepeatedAuditOfABacklogIsBounded(t *testing.T) {
	const rows, pending = 30_000, 500
	for what, req := range map[string]ops.AuditRequest{
		"a repeated audit": {MaxAge: time.Nanosecond}, "the first count of a sweep": {Count: true},
	} {
		for _, version := range testserver.NewestPostgres() {
			d := fresh(t, version, 2)
			d.owner("a")
			d.exec(`ALTER TABLE box.outbox SET (autovacuum_enabled = off)`)
			c := d.counting()
			s := pgstore.New(c.pool, &pgstore.Options{Schema: d.schema})
			d.exec(`INSERT INTO box.outbox (topic) SELECT 't' FROM generate_series(1, $1::integer)`, rows)
			c.reads(what, rows+2*pending, 0, func() error {
				b, err := s.Office().Books.Audit(t.Context(), req)
				if err == nil && b.Counted != rows {
					t.Errorf("%s counted %d rows, want %d", what, b.Counted, rows)
				}
				return err
			})
		}
	}
}

// Where none of the messages that are counted is due, or the pipe's, a message behind them is
// taken for due: the lag is an upper bound, and marked as one.
func TestLagBehindWhatIsCounted(t *testing.T) {
	d := fresh(t, "18", 1)
	s := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, CountLimit: 10})
	f := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, CountLimit: 10, Pipe: "f"})
	if _, err := s.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "f", From: ops.FromBeginning, Filter: store.Filter{Topics: []string{"u"}}, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	want := func(what string, st *pgstore.Store, capped bool, least, most time.Duration) {
		t.Helper()
		got, err := st.Office().Admin.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l := got.Lanes[0]; got.LagCapped != capped || l.LagCapped != capped || got.Lag != l.Lag || l.Lag < least || l.Lag > most {
			t.Errorf("%s: lag %v, capped %v; lane %+v", what, got.Lag, got.LagCapped, l)
		}
	}
	d.exec(`INSERT INTO box.outbox (topic, not_before, created_at) SELECT 't', now() + interval '1 day', now() - interval '3 hours' FROM generate_series(1, 10)`)
	want("ten scheduled messages", s, false, 0, 0)
	d.exec(`INSERT INTO box.outbox (topic, created_at) VALUES ('t', now() - interval '2 hours')`)
	want("one behind them", s, true, 2*time.Hour, 150*time.Minute)
	want("none for the filter", f, true, 2*time.Hour, 150*time.Minute)
	d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id, topic, key, type, content_type, headers, payload)
 SELECT 'main', 0, 100, 'retry', false, now(), now() - interval '1 day', 0, 0, gen_random_uuid(), 't', '', '', '', '{}', ''`)
	want("an older one that is set aside", s, false, 24*time.Hour, 25*time.Hour)
	d.exec(`DELETE FROM box.parked; DELETE FROM box.outbox WHERE seq = 1`)
	want("nine scheduled ones and another", s, false, 2*time.Hour, 150*time.Minute)
}
