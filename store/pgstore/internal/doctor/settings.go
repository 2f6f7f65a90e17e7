package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// setting is a setting of the server that matters to an outbox.
type setting struct {
	name     string
	bad      func(value string) bool
	severity ops.Severity
	why      string
	// relay means that the value for the relay's role counts; otherwise the value for any
	// role.
	relay bool
}

func settingsThatMatter() []setting {
	const endless = "the tables of progress, leases and parked messages grow without limit"
	const early = "a read of a large page, or a takeover, is interrupted before its end, and again at each retry"
	return []setting{
		{"fsync", is("off"), ops.Critical, "a crash of the machine loses committed transactions and may destroy the database", false},
		{"full_page_writes", is("off"), ops.Warning, "a crash of the machine may tear pages, unless the file system writes each as a whole", false},
		{"autovacuum", is("off"), ops.Critical, endless + ", and transaction ids run out", false},
		{"track_counts", is("off"), ops.Critical, "autovacuum does not know what to do: " + endless, false},
		{"synchronous_commit", is("off"), ops.Warning, "a crash of the server loses transactions whose messages were published already; " +
			"with durable=flush in --store the relay waits until they are on disk", false},
		{readOnly, is("on"), ops.Critical, "the relay cannot settle", true},
		{
			"default_transaction_isolation", is("serializable", "repeatable read"), ops.Warning,
			"the relay's statements sometimes fail over conflicts that do not matter to them", true,
		},
		{"statement_timeout", below(5 * time.Second), ops.Warning, early, true},
		{"transaction_timeout", below(5 * time.Second), ops.Warning, early, true},
		{"idle_session_timeout", below(time.Minute), ops.Warning, "the relay's connections are closed between two uses and opened again for each", true},
	}
}

func is(bad ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(bad, v) }
}

// below is true for a time that is set and shorter.
func below(limit time.Duration) func(string) bool {
	return func(v string) bool {
		d, ok := settingTime(v)
		return ok && d > 0 && d < limit
	}
}

// settingTime parses a time as the server writes it: in milliseconds, or with a unit.
func settingTime(v string) (time.Duration, bool) {
	if ms, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(ms) * time.Millisecond, true
	}
	d, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(v, " ", ""), "min", "m"))
	return d, err == nil
}

// override is a value for one role, one database, or one role in one database.
type override struct{ Role, Database, Name, Value string }

func (o override) alter() string {
	switch {
	case o.Role == "":
		return "ALTER DATABASE " + db.Quote(o.Database)
	case o.Database == "":
		return "ALTER ROLE " + db.Quote(o.Role)
	}
	return "ALTER ROLE " + db.Quote(o.Role) + " IN DATABASE " + db.Quote(o.Database)
}

func (o override) whom() string {
	switch {
	case o.Role == "":
		return fmt.Sprintf("for the database %q", o.Database)
	case o.Database == "":
		return fmt.Sprintf("for the role %q", o.Role)
	}
	return fmt.Sprintf("for the role %q in the database %q", o.Role, o.Database)
}

// settings judges the server's settings.
func (p *patient) settings(ctx context.Context) ([]ops.Finding, error) {
	all := settingsThatMatter()
	var wanted []string
	for _, s := range all {
		wanted = append(wanted, s.name)
	}
	type value struct{ Name, Value, Source string }
	values, err := rowsOf[value](ctx, p, `SELECT name, reset_val, source FROM pg_settings WHERE name = ANY ($1)`, wanted)
	if err != nil {
		return nil, err
	}
	// The most specific value comes first; only that one counts.
	overrides, err := rowsOf[override](ctx, p, `SELECT coalesce(r.rolname::text, ''), coalesce(d.datname::text, ''), split_part(c, '=', 1), split_part(c, '=', 2)
FROM pg_db_role_setting x CROSS JOIN unnest(x.setconfig) c LEFT JOIN pg_roles r ON r.oid = x.setrole LEFT JOIN pg_database d ON d.oid = x.setdatabase
WHERE (x.setdatabase = 0 OR d.datname = current_database()) AND split_part(c, '=', 1) = ANY ($1)
ORDER BY x.setrole <> 0 DESC, x.setdatabase <> 0 DESC`, wanted)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, s := range all {
		if s.name == "synchronous_commit" && p.durable != "" {
			continue
		}
		overruled := false
		for _, o := range overrides {
			if o.Name != s.name || s.relay && (overruled || o.Role != "" && o.Role != p.role) {
				continue
			}
			overruled = overruled || o.Role == "" || s.relay
			if s.bad(o.Value) {
				found = append(found, s.finding(o.Value, o.whom(), o.alter()+" RESET "+s.name))
			}
		}
		for _, v := range values {
			ofSession := slices.Contains([]string{"user", "database", "database user", "client", "session"}, v.Source)
			switch {
			case v.Name != s.name || overruled || !s.bad(v.Value):
			case v.Source == "client":
				found = append(found, s.finding(v.Value, "in the connection string"))
			case ofSession:
			case s.name == readOnly: // it also stops the writers, whatever the role; ALTER SYSTEM needs no writable session
				f := s.finding(v.Value, "for the whole server")
				f.Fix = "turn it off for the whole server, if this server is meant to be written to"
				f.SQL = []string{"ALTER SYSTEM SET " + readOnly + " = " + s.good(), "SELECT pg_reload_conf()"}
				found = append(found, f)
			case s.relay:
				found = append(found, s.finding(v.Value, "for the whole server", "ALTER ROLE "+db.Quote(p.role)+" SET "+s.name+" TO "+s.good()))
			default:
				found = append(found, s.finding(v.Value, "for the whole server", "ALTER SYSTEM SET "+s.name+" = "+s.good(), "SELECT pg_reload_conf()"))
			}
		}
	}
	return orFine(found, "the server's settings suit an outbox"), nil
}

// readOnly is the setting that makes each new transaction read-only.
const readOnly = "default_transaction_read_only"

func (s setting) good() string {
	switch s.name {
	case readOnly:
		return "off"
	case "default_transaction_isolation":
		return "'read committed'"
	case "statement_timeout", "transaction_timeout", "idle_session_timeout":
		return "0"
	}
	return "on"
}

func (s setting) finding(value, whom string, sql ...string) ops.Finding {
	fix := "set it right; sessions that are open keep the old value until they reconnect"
	if len(sql) == 0 {
		fix = "leave it out"
	}
	if s.name == readOnly { // which also applies to the session that repairs it
		for i := range sql {
			sql[i] = "BEGIN READ WRITE; " + sql[i] + "; COMMIT"
		}
	}
	return ops.Finding{
		Severity: s.severity, What: fmt.Sprintf("%s is %s %s", s.name, value, whom), Why: s.why, Fix: fix, SQL: sql,
		Data: map[string]any{"setting": s.name, "value": value},
	}
}
