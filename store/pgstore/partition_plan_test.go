package pgstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
)

// explained is how a prepared statement was executed, line by line.
func (d *db) explained(tx pgx.Tx, types, statement, args string) []string {
	d.Helper()
	d.do(tx, `PREPARE explained (`+types+`) AS `+statement)
	rows, err := tx.Query(d.Context(), `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE explained (`+args+`)`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		d.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatal(err)
	}
	d.do(tx, `DEALLOCATE explained`)
	return lines
}

// A page looks into no partition that lies below its position, into one ahead
// only when it is not full without, and always by the index; what came late is looked for by the index of ids,
// whichever partition it is in.
func TestReadsTouchTheirPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		for range 4 {
			d.insert(200)
			d.tend(ops.TendRequest{OlderThan: keep})
		}
		o.drain()
		d.insert(50)
		p, err := o.store.Office().Partitions.Partitions(t.Context())
		if err != nil || len(p.List) != 7 || p.Current != 5 {
			t.Fatalf("%+v, %v", p, err)
		}
		settings, page, young, stragglers := o.store.ReadSQL()
		tx := d.begin()
		d.do(tx, settings)
		pos := d.count(`SELECT min(pos) FROM box.lane_cursor`)
		for _, limit := range []int{5, 100} { // a full page; one that is not, and asks what lies ahead too
			plan := d.explained(tx, `smallint[], bigint[], integer[]`, page, fmt.Sprintf(`'{0,1,2,3}', '{%[1]d,%[1]d,%[1]d,%[1]d}', '{%[2]d,%[2]d,%[2]d,%[2]d}'`, pos, limit))
			for _, one := range p.List {
				never := one.Above <= pos || limit == 5 && one.Number > p.Current
				if line := scanOf(plan, one.Name); !strings.Contains(line, "Index Scan using "+one.Name+"_pkey") || strings.Contains(line, "never executed") != never {
					t.Errorf("a page of %d behind %d, partition %s below %d: %q", limit, pos, one.Name, one.Above, line)
				}
			}
		}
		first := d.count(`SELECT min(xid::text::bigint) FROM box.outbox`)
		for _, late := range []string{young, stragglers} {
			plan := d.explained(tx, `xid8[], xid8[], smallint[], bigint, bigint, bigint`, late, fmt.Sprintf(`'{%d}', '{%d}', '{0,1,2,3}', %d, 10000, 1000000`, first, first+1, pos))
			for _, one := range p.List {
				if line := scanOf(plan, one.Name); !strings.Contains(line, "Index Scan using "+one.Name+"_xid_") {
					t.Errorf("what came late, partition %s: %q", one.Name, line)
				}
			}
		}
	})
}

// scanOf is the line of a plan about one table.
func scanOf(plan []string, table string) string {
	for _, line := range plan {
		if strings.Contains(line, " on "+table+" ") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// The trigger that wakes relays goes with the conversion, fires whichever
// partition an INSERT ends in, and can be made and removed afterwards.
func TestWakeInPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s, wait := d.listening()
		soon := func(what string) {
			t.Helper()
			d.label("m")
			if took := wait(); took > 30*time.Second {
				t.Errorf("%s: Wait took %v", what, took)
			}
		}
		wait() // it begins to listen
		soon("a plain table")
		d.convert()
		soon("converted")
		if got := d.tend(ops.TendRequest{OlderThan: keep}); !got.Rolled {
			t.Fatalf("%+v", got)
		}
		soon("in the next partition")
		for _, how := range []ops.Notify{ops.NotifyOff, ops.NotifyOn} {
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Notify: how}); err != nil {
				t.Fatal(err)
			}
		}
		soon("made anew")
		o.want("m", "m", "m", "m")
	})
}
