package mysqlstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
	"github.com/postrider/postrider/store/mysqlstore/internal/span"
)

// read1 is what read does with the rows of the log, by a span or by pages.
func (s *Store) read1(t *testing.T, reads []store.LaneRead, from []int64, plan func([]span.Lane, int64) span.Span) ([]store.Batch, span.Span) {
	t.Helper()
	conn, err := s.box.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var apart []span.Lane
	lanes := make([]scanned, len(reads))
	for i, r := range reads {
		lanes[i].from = holes.Position{At: from[i]}
		apart = append(apart, span.Lane{ID: r.Lane, From: lanes[i].from, Rows: limit(r)})
	}
	identity, here := s.leased()
	seen, err := s.look(t.Context(), conn, identity, here, apart, func(tip int64) span.Span { return plan(apart, tip) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range lanes {
		lanes[i].sight, lanes[i].upTo = seen, seen.Tip
	}
	if err := s.spread(t.Context(), conn, reads, lanes, &seen); err != nil {
		t.Fatal(err)
	}
	if err := s.heads(t.Context(), conn, reads, lanes, store.Filter{}); err != nil {
		t.Fatal(err)
	}
	bodies, err := records.ByNumber(t.Context(), conn, seen.now, choose(reads, lanes))
	if err != nil {
		t.Fatal(err)
	}
	var all []store.Batch
	for i, r := range reads {
		lanes[i].bodies = bodies
		b := store.Batch{Lane: r.Lane}
		lanes[i].fill(&records.Page{Read: r, Batch: &b, Left: 1 << 40})
		all = append(all, b)
	}
	return all, seen.span
}

// A span finds what pages of its lanes find, in fewer statements, wherever lanes stand and whatever finds room.
func TestSpansFindTheRowsOfPages(t *testing.T) {
	const many = 16 // lanes
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, many)
		rnd := rand.New(rand.NewPCG(1, 2))
		const rows = 400
		for i := range rows {
			payload := strings.Repeat("x", 1<<rnd.IntN(14))
			if _, err := pool.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, type, payload, headers, not_before, version) VALUES ('t', ?, ?, ?, ?, ?, ?)",
				fmt.Sprint(rnd.IntN(50)), fmt.Sprint(i/7), payload, []string{"{}", `{"a":"b"}`}[rnd.IntN(2)], []any{nil, 1 << 50}[rnd.IntN(2)], i); err != nil {
				t.Fatal(err)
			}
			if i%7 == 0 { // a number without a row
				if _, err := pool.ExecContext(t.Context(), `DELETE FROM postrider_outbox ORDER BY seq DESC LIMIT 1`); err != nil {
					t.Fatal(err)
				}
			}
		}
		spans, cut, whole := 0, 0, 0
		for range 60 {
			var reads []store.LaneRead
			var from []int64
			low := rnd.Int64N(rows)
			for lane := range many {
				if rnd.IntN(4) > 0 { // not every lane is read
					reads = append(reads, store.LaneRead{Lane: store.Lane(lane), MaxRecords: 1 + rnd.IntN(60)})
					from = append(from, low+rnd.Int64N(20))
				}
			}
			if len(reads) == 0 {
				continue
			}
			pages, _ := New(pool, nil).read1(t, reads, from, func([]span.Lane, int64) span.Span { return span.Span{} })
			within := []int{0, 200_000, 100_000}[rnd.IntN(3)]
			s := New(pool, nil)
			if rnd.IntN(2) == 0 { // the tip is far ahead
				s.read1(t, reads, from, func([]span.Lane, int64) span.Span { return span.Span{} })
			}
			some, sp := s.read1(t, reads, from, func(lanes []span.Lane, tip int64) span.Span { return new(span.Pace).Plan(lanes, tip, within) })
			if sp.Rows > 0 {
				spans++
			}
			for i := range reads {
				a, b := pages[i], some[i]
				n := len(b.Messages)
				if n > len(a.Messages) || !b.More && (a.More || n < len(a.Messages)) || n > 0 && (!reflect.DeepEqual(a.Messages[:n], b.Messages) || !reflect.DeepEqual(seqs(a)[:n], seqs(b))) {
					t.Fatalf("lane %d from %d, at most %d: %d messages with pages, %d with a span (%v, more %v)", reads[i].Lane, from[i], reads[i].MaxRecords, len(a.Messages), n, seqs(b), b.More)
				}
				if n == len(a.Messages) {
					whole++
					continue
				}
				cut++
				if p, _, err := db.Decode(b.Position); err != nil || p.At >= a.Meta[n].Seq {
					t.Fatalf("lane %d from %d: the position is %v, %v, and %d is not read", reads[i].Lane, from[i], p, err, a.Meta[n].Seq)
				}
			}
		}
		if spans == 0 || cut == 0 || whole == 0 {
			t.Fatalf("%d spans, %d lanes cut off, %d whole: nothing was compared", spans, cut, whole)
		}
	})
}

func seqs(b store.Batch) (all []int64) {
	for _, m := range b.Meta {
		all = append(all, m.Seq)
	}
	return all
}
