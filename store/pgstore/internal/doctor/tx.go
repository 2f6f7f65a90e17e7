package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// inFlight is the set of transactions that lanes wait for. fullID computes the 64-bit id of a
// 32-bit transaction id, which lies within two thousand million of the newest one.
const (
	inFlight = `(SELECT coalesce(range_agg(c.inflight), '{}'::int8multirange) FROM {{schema}}.lane_cursor c)`
	fullID   = `(x.newest + (@ - (x.newest & 4294967295) + 6442450944) % 4294967296 - 2147483648)`
	newest   = `(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest) x`
)

// transactions finds transactions that have been open for long, and notes those in the
// inflight set of a lane.
func (p *patient) transactions(ctx context.Context) ([]ops.Finding, error) {
	type open struct {
		PID                          int
		Role, Application, State, At string
		Age                          *float64
		InFlight, Writes             bool
	}
	rows, err := rowsOf[open](ctx, p, `SELECT a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(host(a.client_addr), 'local'),
 extract(epoch FROM clock_timestamp() - a.xact_start)::float8, f.xids @> `+strings.ReplaceAll(fullID, "@", "a.backend_xid::text::bigint")+`,
 EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.relation = '{{schema}}.outbox'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted)
FROM pg_stat_activity a CROSS JOIN `+newest+` CROSS JOIN (SELECT `+inFlight+` AS xids) f
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - $1::float8 * interval '1 second')
ORDER BY a.xact_start NULLS LAST LIMIT 20`, p.req.Limits.Transaction.Seconds())
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, o := range rows {
		if o.Age == nil { // a session of another role, which this role may not see
			continue
		}
		age := db.Seconds(*o.Age)
		f := ops.Finding{
			Severity: over(age, p.req.Limits.Transaction),
			What: fmt.Sprintf("the transaction of process %d (%s, role %q, from %s, %s) has been open for %s",
				o.PID, application(o.Application), o.Role, o.At, o.State, period(age)),
			Why: "it keeps vacuum from removing what has died since",
			Fix: "let it end, or end it; idle_in_transaction_session_timeout, set for the writers' role, ends forgotten ones",
			SQL: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", o.PID)},
			Data: map[string]any{
				"pid": o.PID, "age_seconds": int64(age.Seconds()), "application": o.Application, "role": o.Role,
				"state": o.State, "client": o.At, "in_flight": o.InFlight, "writes_outbox": o.Writes,
			},
		}
		if o.InFlight {
			f.Why = "it is in the inflight sets of the lanes, which stay as large as that; " + f.Why
		}
		if o.Writes {
			f.Why = "messages that it wrote are delivered only when it commits; " + f.Why
		}
		found = append(found, f)
	}
	if !p.statsRole {
		found = append(found, p.blind("how long the transactions of other roles have been open"))
	}
	return orFine(found, "no transaction has been open for more than %s", period(p.req.Limits.Transaction)), nil
}

func application(name string) string {
	if name == "" {
		return "without application_name"
	}
	return fmt.Sprintf("application %q", name)
}

// blind returns the finding of a check that lacks privileges.
func (p *patient) blind(what string) ops.Finding {
	f := ops.Finding{
		Severity: ops.Warning, What: "this role may not see " + what, Why: "this check was skipped",
		Fix: "examine as another role, or let this one see it",
	}
	if p.self {
		f.SQL = []string{fmt.Sprintf("GRANT pg_read_all_stats TO %s", db.Quote(p.role))}
	}
	return f
}

// prepared finds transactions that were prepared and neither committed nor rolled back. They
// survive the end of their session.
func (p *patient) prepared(ctx context.Context) ([]ops.Finding, error) {
	type waiting struct {
		GID, Role        string
		Age              float64
		InFlight, Writes bool
	}
	rows, err := rowsOf[waiting](ctx, p, `SELECT a.gid, a.owner::text, extract(epoch FROM clock_timestamp() - a.prepared)::float8,
 f.xids @> `+strings.ReplaceAll(fullID, "@", "a.transaction::text::bigint")+`,
 EXISTS (SELECT 1 FROM pg_locks t JOIN pg_locks l ON l.pid IS NULL AND l.virtualtransaction = t.virtualtransaction
  WHERE t.pid IS NULL AND t.transactionid = a.transaction AND l.relation = '{{schema}}.outbox'::regclass)
FROM pg_prepared_xacts a CROSS JOIN `+newest+` CROSS JOIN (SELECT `+inFlight+` AS xids) f
WHERE a.database = current_database() AND a.prepared < clock_timestamp() - $1::float8 * interval '1 second' ORDER BY a.prepared LIMIT 20`,
		p.req.Limits.Transaction.Seconds())
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, w := range rows {
		age := db.Seconds(w.Age)
		f := ops.Finding{
			Severity: over(age, p.req.Limits.Transaction),
			What:     fmt.Sprintf("the transaction prepared as %q by %q has waited for %s", w.GID, w.Role, period(age)),
			Why:      "it holds its locks and keeps vacuum from removing what has died since, also across a restart of the server",
			Fix: fmt.Sprintf("ask its transaction manager; if that has forgotten it: COMMIT PREPARED %s to publish what it wrote, or ROLLBACK PREPARED",
				literal(w.GID)),
			SQL:  []string{"ROLLBACK PREPARED " + literal(w.GID)},
			Data: map[string]any{"gid": w.GID, "role": w.Role, "age_seconds": int64(age.Seconds()), "in_flight": w.InFlight, "writes_outbox": w.Writes},
		}
		if w.Writes {
			f.Why = "messages that it wrote are delivered only when it is committed; " + f.Why
		}
		found = append(found, f)
	}
	return orFine(found, "no prepared transaction has waited for more than %s", period(p.req.Limits.Transaction)), nil
}

// horizon finds sessions, standbys and slots that keep vacuum from removing dead rows, or the
// log from being recycled.
func (p *patient) horizon(ctx context.Context) ([]ops.Finding, error) {
	slots, err := p.slots(ctx)
	if err != nil {
		return nil, err
	}
	type holder struct {
		PID               int
		Application, Role string
		Age               int64
		Standby           bool
	}
	holders, err := rowsOf[holder](ctx, p, `SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), age(a.backend_xmin)::bigint,
 a.backend_type = 'walsender' FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= $1 AND a.pid <> pg_backend_pid()
 ORDER BY 4 DESC LIMIT 5`, p.req.Limits.XIDs)
	if err != nil {
		return nil, err
	}
	found := slots
	for _, h := range holders {
		f := ops.Finding{
			Severity: ops.Warning,
			What:     fmt.Sprintf("process %d (%s, role %q) has a snapshot from %d transactions ago", h.PID, application(h.Application), h.Role, h.Age),
			Why:      "vacuum removes no row that has died since: the tables of progress and leases grow, and the lease becomes slow",
			Fix:      "end it", SQL: []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", h.PID)},
			Data: map[string]any{"pid": h.PID, "application": h.Application, "role": h.Role, "transactions": h.Age},
		}
		if h.Standby {
			f.What = fmt.Sprintf("the standby %q holds vacuum back by %d transactions (hot_standby_feedback)", h.Application, h.Age)
			f.Fix, f.SQL = "end the long query on the standby, or turn hot_standby_feedback off there", nil
		}
		found = append(found, f)
	}
	return orFine(found, "nothing keeps vacuum from more than %d transactions, no unused slot holds the log", p.req.Limits.XIDs), nil
}

func (p *patient) slots(ctx context.Context) ([]ops.Finding, error) {
	type slot struct {
		Name, Status   string
		Active         bool
		XIDs, Catalogs int64
		Bytes          int64
	}
	rows, err := rowsOf[slot](ctx, p, `SELECT slot_name::text, coalesce(wal_status, ''), active, coalesce(age(xmin), 0)::bigint, coalesce(age(catalog_xmin), 0)::bigint,
 coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint FROM pg_replication_slots ORDER BY slot_name`)
	if err != nil {
		return nil, err
	}
	limits := p.req.Limits
	var found []ops.Finding
	for _, s := range rows {
		data := map[string]any{"slot": s.Name, "active": s.Active, "bytes": s.Bytes, "transactions": max(s.XIDs, s.Catalogs), "status": s.Status}
		drop := []string{fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", literal(s.Name))}
		switch {
		case !s.Active && (s.Bytes >= limits.WAL || s.Status == "unreserved" || s.Status == "lost"):
			found = append(found, ops.Finding{
				Severity: max(over(s.Bytes, limits.WAL), ops.Warning), Data: data, SQL: drop,
				What: fmt.Sprintf("the replication slot %q is unused and holds %d MiB of the log", s.Name, s.Bytes>>20),
				Why:  "the log fills the disk, and then no session can write", Fix: "start its consumer, or drop it",
			})
		case s.XIDs >= limits.XIDs || s.Catalogs >= limits.XIDs:
			f := ops.Finding{
				Severity: ops.Warning, Data: data,
				What: fmt.Sprintf("the replication slot %q holds vacuum back by %d transactions", s.Name, max(s.XIDs, s.Catalogs)),
				Why:  "dead rows stay: the tables of progress and leases grow", Fix: "check whether its consumer keeps up",
			}
			if !s.Active {
				f.Fix, f.SQL = "start its consumer, or drop it", drop
			}
			found = append(found, f)
		}
	}
	return found, nil
}

// wraparound checks the distance of the transaction ids from their end.
func (p *patient) wraparound(ctx context.Context) ([]ops.Finding, error) {
	type oldest struct {
		Name        string
		Age, Freeze int64
	}
	rows, err := rowsOf[oldest](ctx, p, `SELECT c.relname::text, age(c.relfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relfrozenxid <> '0'
UNION ALL SELECT '', age(datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint FROM pg_database WHERE datname = current_database()
ORDER BY 2 DESC`, p.Schema)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, o := range rows {
		if f := frozen(o.Age, o.Freeze); f != ops.OK {
			found = append(found, p.unfrozen(o.Name, o.Age, f))
		}
	}
	return orFine(found, "transaction ids are far from their end"), nil
}

// frozen judges an age. Autovacuum freezes at the server's limit, so at twice the limit it
// does not keep up. Writes end at 2,100 million.
func frozen(age, limit int64) ops.Severity {
	switch {
	case age > 1_500_000_000:
		return ops.Critical
	case age > 2*limit || age > 1_000_000_000:
		return ops.Warning
	}
	return ops.OK
}

func (p *patient) unfrozen(table string, age int64, severity ops.Severity) ops.Finding {
	f := ops.Finding{
		Severity: severity, What: fmt.Sprintf("%s was last frozen %d million transactions ago", p.table(table), age/1_000_000),
		Why: "at 2,100 million the server takes no writes any more; autovacuum does not keep up, or something holds it back",
		Fix: "see the check \"horizon\" for what holds it back, then freeze it", SQL: []string{"VACUUM (FREEZE) " + p.table(table)},
		Data: map[string]any{"table": table, "transactions": age},
	}
	if table == "" {
		f.What = fmt.Sprintf("the database was last frozen %d million transactions ago", age/1_000_000)
		f.SQL = []string{"VACUUM (FREEZE)"}
	}
	return f
}

// patience is the wait for a lock above which a session is a finding.
const patience = 2 * time.Second

// locks finds sessions that keep others waiting for one of the outbox's tables.
func (p *patient) locks(ctx context.Context) ([]ops.Finding, error) {
	type wait struct {
		Table       string
		Waiting     int
		Age         float64
		Blocker     int
		Application string
		Role        string
	}
	rows, err := rowsOf[wait](ctx, p, `SELECT c.relname::text, count(DISTINCT w.pid)::int, max(extract(epoch FROM clock_timestamp() - w.waitstart))::float8,
 b.pid, coalesce(max(a.application_name), ''), coalesce(max(a.usename::text), '')
FROM pg_locks w JOIN pg_class c ON c.oid = w.relation JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid
WHERE NOT w.granted AND n.nspname = $1 AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND w.waitstart < clock_timestamp() - $2::float8 * interval '1 second'
AND NOT EXISTS (SELECT 1 FROM pg_locks x WHERE x.pid = b.pid AND NOT x.granted)
GROUP BY c.relname, b.pid ORDER BY 2 DESC`, p.Schema, patience.Seconds())
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, w := range rows {
		f := ops.Finding{
			Severity: ops.Critical,
			What: fmt.Sprintf("process %d (%s, role %q) keeps %d others waiting for %s, for %s by now",
				w.Blocker, application(w.Application), w.Role, w.Waiting, p.table(w.Table), period(db.Seconds(w.Age))),
			Why: "writers or relays are blocked until it ends", Fix: "let it end, or end it",
			SQL:  []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", w.Blocker)},
			Data: map[string]any{"pid": w.Blocker, "table": w.Table, "waiting": w.Waiting, "application": w.Application, "role": w.Role},
		}
		if w.Blocker == 0 {
			f.What = fmt.Sprintf("a prepared transaction keeps %d others waiting for %s", w.Waiting, p.table(w.Table))
			f.Fix, f.SQL = "see the check \"prepared\"", nil
		}
		found = append(found, f)
	}
	return orFine(found, "no session waits for a lock on the outbox's tables"), nil
}
