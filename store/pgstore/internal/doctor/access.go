package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/roles"
)

// kind returns the purpose of the examined role: the strongest of the outbox's group roles
// of which it is a member. A role without one counts as a relay's.
func (p *patient) kind(ctx context.Context) (string, error) {
	return one[string](ctx, p, `WITH t AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2 AND c.relname = 'outbox'),
g AS (SELECT x.grantee FROM t CROSS JOIN aclexplode(t.relacl) x
  UNION SELECT x.grantee FROM t JOIN pg_attribute a ON a.attrelid = t.oid CROSS JOIN aclexplode(a.attacl) x)
SELECT coalesce((SELECT k.name FROM unnest($3::text[]) WITH ORDINALITY AS k(name, at)
 JOIN pg_roles r ON r.rolname LIKE '%\_' || k.name AND NOT r.rolcanlogin JOIN g ON g.grantee = r.oid
 WHERE pg_has_role($1, r.oid, 'MEMBER') ORDER BY k.at LIMIT 1), 'relay')`, p.role, p.Schema, []string{roles.Relay, roles.Admin, roles.Reader, roles.Writer})
}

// privileges checks that the role has the privileges of its kind: a relay's or, if it is a
// member of another group role, that role's.
func (p *patient) privileges(ctx context.Context) ([]ops.Finding, error) {
	usage, err := one[bool](ctx, p, `SELECT coalesce(bool_and(has_schema_privilege($1, oid, 'USAGE')), false) FROM pg_namespace WHERE nspname = $2`,
		p.role, p.Schema)
	if err != nil {
		return nil, err
	}
	kind, err := p.kind(ctx)
	if err != nil {
		return nil, err
	}
	var missing, grants []string
	if !usage {
		missing = append(missing, "USAGE on the schema")
		grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", db.Quote(p.Schema), db.Quote(p.role)))
	}
	for _, n := range roles.Needs(kind) {
		object, err := p.lacks(ctx, n)
		if err != nil {
			return nil, err
		}
		if object == "" {
			continue
		}
		columns := ""
		if n.Columns != "" {
			columns = " (" + n.Columns + ")"
		}
		missing = append(missing, n.Privilege+" on "+n.Relation)
		grants = append(grants, fmt.Sprintf("GRANT %s%s ON %s %s TO %s", n.Privilege, columns, object, p.table(n.Relation), db.Quote(p.role)))
	}
	identity, err := one[bool](ctx, p, `SELECT has_function_privilege($1, 'pg_catalog.pg_control_system()', 'EXECUTE')`, p.role)
	if err != nil {
		return nil, err
	}
	if !identity && kind != roles.Writer {
		missing = append(missing, "EXECUTE on pg_control_system")
		grants = append(grants, fmt.Sprintf("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO %s", db.Quote(p.role)))
	}
	if len(missing) == 0 {
		return fine("the role %q has the privileges of a %s", p.role, kind), nil
	}
	why := "a relay with this role ends, or cannot settle, park or take over lanes"
	if kind != roles.Relay {
		why = "commands with this role fail: it is a " + kind
	}
	return []ops.Finding{{
		Severity: ops.Critical, What: fmt.Sprintf("the role %q lacks %s", p.role, strings.Join(missing, ", ")),
		Why: why,
		Fix: "grant them, or the role that postrider migrate --roles makes for relays; if this is not the relay's role, name that with --role",
		SQL: grants, Data: map[string]any{"role": p.role, "missing": missing},
	}}, nil
}

// lacks returns the kind of the relation on which the examined role lacks a privilege, "" if
// it has the privilege or the relation does not exist.
func (p *patient) lacks(ctx context.Context, n roles.Need) (kind string, err error) {
	return one[string](ctx, p, `SELECT coalesce((SELECT CASE WHEN CASE WHEN c.relkind = 'S' THEN has_sequence_privilege($1, c.oid, $3)
  WHEN $4 = '' THEN has_table_privilege($1, c.oid, $3)
  ELSE (SELECT coalesce(bool_and(has_column_privilege($1, c.oid, a.attname, $3)), true) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attname = ANY (string_to_array($4, ', '))) END
 THEN '' WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $5 AND c.relname = $2), '')`, p.role, n.Relation, n.Privilege, n.Columns, p.Schema)
}

// rowSecurity finds tables whose rows are hidden from the relay's role.
func (p *patient) rowSecurity(ctx context.Context) ([]ops.Finding, error) {
	tables, err := names(ctx, p, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.rolname = $1
WHERE n.nspname = $2 AND c.relkind IN ('r', 'p') AND c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls)
AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE')) ORDER BY c.relname`, p.role, p.Schema)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, t := range tables {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("row security on %s hides rows from the role %q", p.table(t), p.role),
			Why: "messages would be passed over: a relay refuses to start",
			Fix: fmt.Sprintf("turn it off, or ALTER ROLE %s BYPASSRLS", db.Quote(p.role)),
			SQL: []string{fmt.Sprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", p.table(t))},
		})
	}
	return orFine(found, "no row security hides rows from the role %q", p.role), nil
}

// owner checks that no writer owns the outbox: an owner may set the numbers and transaction
// ids on which the cursor rests, and change the table.
func (p *patient) owner(ctx context.Context) ([]ops.Finding, error) {
	type owner struct {
		Name         string
		Super, Login bool
	}
	o, err := rowsOf[owner](ctx, p, `SELECT r.rolname::text, r.rolsuper, r.rolcanlogin FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.oid = c.relowner WHERE n.nspname = $1 AND c.relname = 'outbox'`, p.Schema)
	if err != nil {
		return nil, err
	}
	grantees, err := p.grantees(ctx)
	if err != nil {
		return nil, err
	}
	owns, others := o[0].Name, 0
	var found []ops.Finding
	for _, g := range grantees {
		if !g.Inserts || g.Relay {
			continue
		}
		others++
		if !g.Member {
			continue
		}
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("the writer %q is a member of %q, which owns the outbox", g.Name, owns),
			Why: "it may set seq and xid itself, and so hide messages from the relay or forge them, and read every payload",
			Fix: "revoke the membership", SQL: []string{fmt.Sprintf("REVOKE %s FROM %s", db.Quote(owns), db.Quote(g.Name))},
			Data: map[string]any{"owner": owns, "writer": g.Name},
		})
	}
	if others == 0 && o[0].Login && !o[0].Super {
		found = append(found, p.ownedByWriter(owns))
	}
	return orFine(found, "the outbox belongs to %q, and no writer is a member of it", owns), nil
}

// ownedByWriter finds an outbox into which only its owner may write. It is a guess, hence
// only a warning.
func (p *patient) ownedByWriter(owner string) ops.Finding {
	const apart = "postrider_owner"
	table := p.table("outbox")
	return ops.Finding{
		Severity: ops.Warning, What: fmt.Sprintf("only %q, which owns the outbox, may write into it", owner),
		Why: "if applications write as this role, they may set seq and xid themselves, and so hide messages from the relay or forge them",
		Fix: "let them write as a role of their own: postrider migrate --roles makes one. Or let a role own the outbox that cannot log in; " +
			"later migrations are for a superuser or a member of that role then",
		SQL: []string{
			fmt.Sprintf("DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '%[1]s') THEN CREATE ROLE %[1]s NOLOGIN; END IF; END $$", apart),
			fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s", db.Quote(p.Schema), apart),
			fmt.Sprintf("ALTER TABLE %s OWNER TO %s", table, apart),
			fmt.Sprintf("GRANT SELECT, DELETE ON %s TO %s", table, db.Quote(owner)),
			fmt.Sprintf("GRANT INSERT (%s) ON %s TO %s", roles.Written, table, db.Quote(owner)),
		},
		Data: map[string]any{"owner": owner},
	}
}

// grantee is a role with privileges on the outbox.
type grantee struct {
	Name    string // "" is PUBLIC
	Inserts bool   // may insert at least one column
	Forges  bool   // may set xid or seq
	Changes string // privileges to change an append-only table
	Reads   bool   // may read payloads
	Relay   bool   // may settle, or is the examined role
	Member  bool   // may act as the owner
}

func (p *patient) grantees(ctx context.Context) ([]grantee, error) {
	return rowsOf[grantee](ctx, p, `WITH t AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = 'outbox'),
g AS (SELECT x.grantee, x.privilege_type AS privilege, NULL::text AS attname FROM t CROSS JOIN aclexplode(t.relacl) x
  UNION ALL SELECT x.grantee, x.privilege_type, a.attname::text FROM t JOIN pg_attribute a ON a.attrelid = t.oid CROSS JOIN aclexplode(a.attacl) x)
SELECT coalesce(r.rolname::text, ''), bool_or(g.privilege = 'INSERT'),
 bool_or(g.privilege = 'INSERT' AND (g.attname IS NULL OR g.attname IN ('xid', 'seq'))),
 coalesce(string_agg(DISTINCT g.privilege, ', ') FILTER (WHERE g.privilege IN ('UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES')), ''),
 bool_or(g.privilege = 'SELECT' AND (g.attname IS NULL OR g.attname = 'payload')),
 g.grantee <> 0 AND (r.rolname = $2 OR has_table_privilege(g.grantee, (SELECT c.oid FROM pg_class c, t WHERE c.relnamespace = t.relnamespace
   AND c.relname = 'progress'), 'INSERT')),
 g.grantee <> 0 AND pg_has_role(g.grantee, t.relowner, 'MEMBER')
FROM g CROSS JOIN t LEFT JOIN pg_roles r ON r.oid = g.grantee
WHERE g.grantee <> t.relowner AND coalesce(NOT r.rolsuper, true)
GROUP BY g.grantee, r.rolname, t.relowner ORDER BY 1`, p.Schema, p.role)
}

// grants finds rights on the outbox that no role should have.
func (p *patient) grants(ctx context.Context) ([]ops.Finding, error) {
	grantees, err := p.grantees(ctx)
	if err != nil {
		return nil, err
	}
	table := p.table("outbox")
	var found []ops.Finding
	for _, g := range grantees {
		if g.Relay && g.Name != "" {
			continue
		}
		to, who := db.Quote(g.Name), fmt.Sprintf("the role %q", g.Name)
		if g.Name == "" {
			to, who = "PUBLIC", "everybody"
		}
		if g.Forges {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("%s may set seq and xid of a message", who),
				Why: "a number or transaction id that is not the writer's own hides the message from the relay, or puts it before others",
				Fix: "let it set the other columns only",
				SQL: []string{
					fmt.Sprintf("REVOKE INSERT ON %s FROM %s", table, to),
					fmt.Sprintf("GRANT INSERT (%s) ON %s TO %s", roles.Written, table, to),
				},
			})
		}
		if g.Changes != "" {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("%s may %s on the outbox", who, g.Changes),
				Why: "messages that are changed or removed behind the relay's back are lost without a trace",
				Fix: "revoke it", SQL: []string{fmt.Sprintf("REVOKE %s ON %s FROM %s", g.Changes, table, to)},
			})
		}
		if g.Reads && (g.Name == "" || g.Inserts) {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("%s may read every payload", who),
				Why: "writers need not read what others write", Fix: "revoke it",
				SQL: []string{fmt.Sprintf("REVOKE SELECT ON %s FROM %s", table, to)},
			})
		}
	}
	return orFine(found, "only relays may do more to the outbox than write messages"), nil
}
