package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// tableHealth has the server's statistics of one table.
type tableHealth struct {
	Name       string
	Live, Dead int64 // estimates of the server
	Bytes      int64 // of its rows
	Disabled   bool  // autovacuum is off for the table
	Vacuumed   *time.Time
}

// vacuum finds tables with many dead rows.
func (p *patient) vacuum(ctx context.Context) ([]ops.Finding, error) {
	rows, err := rowsOf[tableHealth](ctx, p, `SELECT c.relname::text, coalesce(t.n_live_tup, 0), coalesce(t.n_dead_tup, 0), pg_relation_size(c.oid),
 coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false),
 greatest(t.last_vacuum, t.last_autovacuum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables t ON t.relid = c.oid
WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY c.relname`, p.Schema)
	if err != nil {
		return nil, err
	}
	limits := p.req.Limits
	var found []ops.Finding
	for _, t := range rows {
		table := p.table(t.Name)
		data := map[string]any{"table": t.Name, "live_estimate": t.Live, "dead_estimate": t.Dead, "bytes": t.Bytes}
		if t.Vacuumed != nil {
			data["vacuumed"] = t.Vacuumed.UTC().Format(time.RFC3339)
		}
		if t.Disabled {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: "autovacuum leaves " + table + " alone", Data: data,
				Why: "it grows without limit, and its transaction ids are not frozen", Fix: "let autovacuum work",
				SQL: []string{fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled)", table)},
			})
		}
		if t.Dead >= limits.Dead && t.Dead >= t.Live/5 {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("%s has about %d dead rows beside about %d live ones", table, t.Dead, t.Live), Data: data,
				Why: "every lease and settlement reads past them",
				Fix: "see the checks \"transactions\" and \"horizon\" for what keeps vacuum from removing them, then", SQL: []string{"VACUUM " + table},
			})
		}
		small := slices.Contains([]string{"progress", "relay", "running"}, t.Name)
		if small && t.Bytes >= limits.Bloat && t.Bytes/256 >= 4*t.Live {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("%s takes %d MiB for about %d rows", table, t.Bytes>>20, t.Live), Data: data,
				Why: "it was held back from vacuum once, and plain vacuum gives nothing back to the disk",
				Fix: "rewrite its few rows; the relay waits for that long", SQL: []string{"VACUUM (FULL, ANALYZE) " + table},
			})
		}
	}
	return orFine(found, "no table has many dead rows"), nil
}

// size reports the tables' size on disk. The server does not report the free space.
func (p *patient) size(ctx context.Context) ([]ops.Finding, error) {
	type table struct {
		Name  string
		Bytes int64
	}
	rows, err := rowsOf[table](ctx, p, `SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY c.relname`, p.Schema)
	if err != nil {
		return nil, err
	}
	var sum int64
	data := map[string]any{}
	for _, t := range rows {
		sum += t.Bytes
		data[t.Name] = t.Bytes
	}
	return []ops.Finding{{What: fmt.Sprintf("the tables and their indexes take %d MiB", sum>>20), Data: data}}, nil
}
