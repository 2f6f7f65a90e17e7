package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/migrate"
)

// schemaVersion checks that this program works with the schema, and that the schema was made
// by the migrations of this program.
func (p *patient) schemaVersion(ctx context.Context) ([]ops.Finding, error) {
	schema := p.Schema
	f := ops.Finding{Severity: ops.Critical, Data: map[string]any{"have": p.have.Version, "want": db.Version}}
	switch {
	case p.noOutbox:
		f.What, f.Fix = fmt.Sprintf("schema %q has no outbox", schema), "postrider migrate"
	case p.have.Version == 0:
		f.What, f.Fix = fmt.Sprintf("the version of schema %q cannot be read", schema), "see the check \"privileges\""
	case p.have.Newer():
		f.Severity = ops.Warning
		f.What = fmt.Sprintf("schema %q is at version %d, this program at %d, which works with it", schema, p.have.Version, db.Version)
		f.Why, f.Fix = "a rolling upgrade is under way, or was left unfinished", "upgrade this program"
	case p.have.Version > db.Version:
		f.What = fmt.Sprintf("schema %q is at version %d, newer than the %d this program knows", schema, p.have.Version, db.Version)
		f.Fix = "upgrade this program"
	case p.have.Version < db.Version:
		f.What = fmt.Sprintf("schema %q is at version %d, this program needs %d", schema, p.have.Version, db.Version)
		f.Fix = "postrider migrate"
	default:
		return p.checksums(ctx)
	}
	if !p.have.Fits() {
		f.Why = "no relay of this version works here; checks that read the outbox's own tables were left out"
	}
	return []ops.Finding{f}, nil
}

func (p *patient) checksums(ctx context.Context) ([]ops.Finding, error) {
	all, err := migrate.All()
	if err != nil {
		return nil, err
	}
	type made struct {
		Version int
		Text    string
	}
	rows, err := rowsOf[made](ctx, p, `SELECT version, checksum FROM {{schema}}.migration ORDER BY version`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, m := range all {
		for _, r := range rows {
			if r.Version == m.Version && r.Text != m.Checksum() {
				found = append(found, ops.Finding{
					Severity: ops.Critical,
					What:     fmt.Sprintf("migration %d %s was applied with a text that differs from this program's", m.Version, m.Name),
					Why:      "tables or functions may not be what the relay takes them for; `postrider migrate` refuses to continue",
					Fix:      "compare the schema with `postrider migrate --print-sql`",
				})
			}
		}
	}
	return orFine(found, "schema %q is at version %d, as this program needs it", p.Schema, p.have.Version), nil
}

// server reports a standby, which lags behind and accepts no writes.
func (p *patient) server(context.Context) ([]ops.Finding, error) {
	data := map[string]any{"server_version": p.version}
	if p.standby {
		return []ops.Finding{{
			Severity: ops.Critical, What: "the server is a standby", Data: data,
			Why: "a relay refuses it: it may lack or repeat messages. Nothing else was examined",
			Fix: "connect to the primary: add target_session_attrs=read-write to --store",
		}}, nil
	}
	if p.version < 150000 {
		return []ops.Finding{{
			Severity: ops.Critical, What: fmt.Sprintf("PostgreSQL %d is older than 15", p.version/10000), Data: data,
			Why: "it lacks functions that the relay uses", Fix: "upgrade the server",
		}}, nil
	}
	return []ops.Finding{{What: fmt.Sprintf("PostgreSQL %d.%d, a primary", p.version/10000, p.version%10000), Data: data}}, nil
}

// moved finds an outbox with numbers or transaction ids of another server.
func (p *patient) moved(ctx context.Context) ([]ops.Finding, error) {
	type history struct{ Home, Marked bool }
	h, err := rowsOf[history](ctx, p, `SELECT cluster = (pg_control_system()).system_identifier, reset_xid = 9223372036854775807
FROM {{schema}}.outbox_info`)
	if err != nil {
		return nil, err
	}
	switch {
	case len(h) != 1:
		return []ops.Finding{{
			Severity: ops.Critical, What: fmt.Sprintf("%s has %d rows instead of one", p.table("outbox_info"), len(h)),
			Why: "no relay works without it", Fix: "restore the row from a backup: it holds the number of lanes",
		}}, nil
	case !h[0].Home:
		return []ops.Finding{{
			Severity: ops.Critical, What: "the outbox was moved here from another server (dump and restore, pg_upgrade, logical cut-over)",
			Why: "its transaction ids mean nothing here, and a relay refuses it",
			Fix: "when nothing writes into the old outbox any more and no relay reads it: postrider migrate --adopt",
		}}, nil
	case h[0].Marked:
		return []ops.Finding{{
			Severity: ops.Critical, What: "the repair of a sequence that was set back was interrupted",
			Why: "messages are held back that were settled already", Fix: "stop the relays, then: postrider migrate --adopt",
		}}, nil
	}
	return fine("the outbox belongs to this server"), nil
}

// durability checks the standbys that durable=replay needs, and finds commits that wait for
// a missing standby.
func (p *patient) durability(ctx context.Context) ([]ops.Finding, error) {
	type standbys struct {
		Names             string
		All, Seen, InSync int
	}
	s, err := rowsOf[standbys](ctx, p, `SELECT current_setting('synchronous_standby_names'), count(*)::int, count(r.state)::int,
 (count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')))::int FROM pg_stat_replication r`)
	if err != nil {
		return nil, err
	}
	now := s[0]
	data := map[string]any{"standbys": now.All, "synchronous": now.InSync, "synchronous_standby_names": now.Names}
	replay := p.durable == "replay"
	var found []ops.Finding
	if now.Names != "" && (now.All == 0 || now.Seen == now.All && now.InSync == 0) {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: "synchronous_standby_names is set, and no synchronous standby is connected", Data: data,
			Why: "every commit waits for one: writers and the relay are blocked",
			Fix: "start the standby, or remove it from synchronous_standby_names",
			SQL: []string{"ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"},
		})
	}
	if replay && now.All == 0 {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: "durable=replay is set, and no standby is connected", Data: data,
			Why: "nothing is published until one is", Fix: "start a standby, or use durable=flush in --store",
		})
	}
	if replay && now.Seen < now.All && !p.statsRole {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: "durable=replay is set, and this role may not see the positions of the standbys", Data: data,
			Why: "nothing is published", Fix: "grant pg_monitor to the role", SQL: []string{fmt.Sprintf("GRANT pg_monitor TO %s", db.Quote(p.role))},
		})
	}
	if len(found) == 0 {
		found = fine("%d standbys are connected, %d of them synchronous", now.All, now.InSync)
		found[0].Data = data
	}
	return found, nil
}

// pooler detects a pooler between this program and the server.
func (p *patient) pooler(ctx context.Context) ([]ops.Finding, error) {
	pid, err := one[uint32](ctx, p, `SELECT pg_backend_pid()`)
	if err != nil {
		return nil, err
	}
	conn := p.tx.Conn()
	if pid == conn.PgConn().PID() {
		return fine("no pooler in front of the server"), nil
	}
	if mode := conn.Config().DefaultQueryExecMode; mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeCacheDescribe {
		return []ops.Finding{{
			Severity: ops.Warning, What: "a pooler is in front of the server, and statements are prepared under names",
			Why:  "one that pools transactions mixes them up, unless it is PgBouncer 1.21 or newer with max_prepared_statements set",
			Fix:  "add default_query_exec_mode=exec to the connection string, or make the pool with pgstore.ParseConfig",
			Data: map[string]any{"mode": mode.String()},
		}}, nil
	}
	return fine("a pooler is in front of the server; nothing is prepared under a name, so transaction pooling works"), nil
}

// connections checks how many connections are left for roles that are not superusers.
func (p *patient) connections(ctx context.Context) ([]ops.Finding, error) {
	type usage struct{ Used, Most int }
	u, err := rowsOf[usage](ctx, p, `SELECT count(*)::int, current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
 - coalesce(current_setting('reserved_connections', true)::int, 0) FROM pg_stat_activity WHERE backend_type = 'client backend'`)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"used": u[0].Used, "available": u[0].Most}
	if u[0].Used*10 >= u[0].Most*9 {
		return []ops.Finding{{
			Severity: ops.Warning, What: fmt.Sprintf("%d of %d connections are in use", u[0].Used, u[0].Most), Data: data,
			Why: "a relay that starts or reconnects finds none: its lanes wait",
			Fix: "give the applications smaller pools, or put a pooler before the server, or raise max_connections",
		}}, nil
	}
	return []ops.Finding{{What: fmt.Sprintf("%d of %d connections are in use", u[0].Used, u[0].Most), Data: data}}, nil
}
