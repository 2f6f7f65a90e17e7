package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// The group roles of an outbox, behind a prefix and an underscore. They cannot
// log in: grant them to those who do.
const (
	roleWriter = "writer" // inserts messages, reads nothing
	roleRelay  = "relay"  // carries them
	roleReader = "reader" // sees everything but payloads
	roleAdmin  = "admin"  // sees what is parked with its payload, and acts

	roleConsumer = "consumer" // of an inbox beside the outbox, which makes and grants it
)

// What readers see and writers set. Every column of outbox and parked is in a
// list or, in roles_test.go, among those that are kept back.
const (
	written = "id, topic, key, type, payload, content_type, headers, version, schema_version, not_before"
	shown   = "xid, seq, created_at, not_before, version, schema_version, id, lane, topic, key, type, content_type, headers, emptied_at"
	erased  = "payload, headers, emptied_at"
	aside   = "pipe, lane, seq, state, captures, due_at, attempts, generation, class, code, error, first_failed, last_attempt, " +
		"parked_at, created_at, not_before, version, schema_version, id, topic, key, type, content_type, headers"
)

// grant says what each role may do to one relation or function: privileges,
// each with the columns behind it if it is not for all of them, separated by
// semicolons.
type grant struct{ name, writer, relay, reader, admin string }

// grants decides for every relation of the schema, and every function that not
// everybody may call; a test fails for one that is not here. What only the owner
// touches has an entry without roles.
func grants() []grant {
	const (
		see  = "SELECT"
		work = "SELECT; INSERT; DELETE"
		all  = "SELECT; INSERT; UPDATE; DELETE"
		// Who asked, for what and why is not changed by who does it, but for seq,
		// where the next page begins, and args, which notes a replay's generation.
		// What was asked for stands in the table audit.
		asked    = "pipe, lane, seq, kind, actor, reason, ask, args, key, upto, gate, rate"
		carryOut = "UPDATE done_at, result, ran_at, moved, gate, seq, args"
	)
	return []grant{
		{"migration", see, see, see, see},
		// Rows and payloads go by retention, payloads by erase. What an admin replays it sees anyway.
		{"outbox", "INSERT " + written, "SELECT; DELETE; UPDATE " + erased, "SELECT " + shown, "SELECT; UPDATE " + erased},
		{"outbox_seq", "USAGE", "SELECT; UPDATE", see, see},
		// A sequence that was set back is lifted by the relay, and that is noted.
		{"outbox_info", "", "SELECT; UPDATE restore_epoch, reset_xid, floor", see, see},
		{"pipe", "", "SELECT; INSERT; UPDATE pause_reason", see, "SELECT; INSERT; DELETE; UPDATE paused, paused_at, paused_by, pause_reason"}, // one column, so that rows can be locked
		{"running", "", work, see, work},
		{"progress", "", work, see, work},
		{"relay", "", all, see, all},
		{"parked", "", all, "SELECT " + aside, all},
		// A relay asks for what --keep-dead says.
		{"request", "", "SELECT; DELETE; " + carryOut + "; INSERT " + asked, see, "SELECT; DELETE; " + carryOut + "; INSERT " + asked},
		{"audit", "", work, see, "SELECT; INSERT"}, // by its trigger, nothing that is younger than a week is deleted
		{"hold", "", all, see, all},
		{"repair", "", "SELECT; INSERT; UPDATE", see, all},
		{"retention", "", "SELECT; UPDATE", see, see}, // who removes rows of the outbox is the relay, so that no person does it by hand
		{"keeper", "", see, see, see},
		{"book", "", "SELECT; INSERT; UPDATE", see, "SELECT; INSERT; UPDATE"},
		{"book_cursor", "", "SELECT; UPDATE", see, "SELECT; UPDATE"},
		{"book_lane", "", "SELECT; UPDATE", see, "SELECT; UPDATE"},
		{"strict_topic", "", see, see, see},
		{"key_version", "", see, see, see},
		{"strict_number", "", "", "", ""}, // called by its trigger
		{"strict_apply", "", "", "", ""},
		{"lock_keys", "EXECUTE", "", "", ""},
		{"partition", "", see, see, see},
		// Only relays remove rows and partitions. Every role that acts may count what is
		// due.
		{"partition_note", "", "EXECUTE", "", ""},
		{"partition_make", "", "EXECUTE", "", ""},
		{"partition_roll", "", "EXECUTE", "", ""},
		{"partition_drop", "", "EXECUTE", "", ""},
		{"partition_due", "", "EXECUTE", "", "EXECUTE"},
		{"partition_holder", "", "", "", ""}, // called by partition_drop
		{"partition_book", "", "", "", ""},
		{"lane_cursor", "", see, see, see},
		{"messages", "", see, see, see},
	}
}

// decisions are the grants as rows of SQL: name, role, privilege, columns.
func decisions() string {
	var rows []string
	for _, g := range grants() {
		for _, r := range []struct{ role, privileges string }{
			{roleWriter, g.writer}, {roleRelay, g.relay}, {roleReader, g.reader}, {roleAdmin, g.admin},
		} {
			for _, p := range strings.Split(r.privileges, ";") {
				if p = strings.TrimSpace(p); p != "" {
					privilege, columns, _ := strings.Cut(p, " ")
					rows = append(rows, fmt.Sprintf("            ('%s', '%s', '%s', '{%s}'::name[])", g.name, r.role, privilege, columns))
				}
			}
		}
	}
	return strings.Join(rows, ",\n")
}

// rolesSQL makes the roles that are not there and sets what they may do, no
// more and no less, to those relations of ours that are there.
const rolesSQL = `DO $roles$
DECLARE
    place  text := {{name}};
    prefix text := {{prefix}};
    who    text;
    g      record;
BEGIN
    FOREACH who IN ARRAY ARRAY['writer', 'relay', 'reader', 'admin'] LOOP
        who := prefix || '_' || who;
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = who) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', who);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- for another outbox, at the same time
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', place, who);
        FOR g IN SELECT x.object FROM {{objects}} x WHERE x.name = ANY ('{{names}}') LOOP
            EXECUTE format('REVOKE ALL ON %s FROM %I', g.object, who);
        END LOOP;
    END LOOP;
    FOR g IN SELECT x.object, d.role, d.privilege, cardinality(d.columns) > 0 AS listed,
            (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = x.oid AND a.attname = ANY (d.columns)) AS columns
        FROM (VALUES
{{decisions}}
        ) AS d(name, role, privilege, columns) JOIN {{objects}} x USING (name)
    LOOP
        CONTINUE WHEN g.listed AND g.columns IS NULL;
        EXECUTE format('GRANT %s%s ON %s TO %I', g.privilege, ' (' || g.columns || ')', g.object, prefix || '_' || g.role);
    END LOOP;
    UPDATE {{schema}}.outbox_info SET role_prefix = prefix WHERE role_prefix IS DISTINCT FROM prefix;
END;
$roles$;
`

// objects are the relations and functions of the schema, as GRANT names them.
const objects = `(
            SELECT c.oid, c.relname AS name, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || format('%I.%I', place, c.relname) AS object
            FROM pg_catalog.pg_class c WHERE c.relnamespace = quote_ident(place)::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
            UNION ALL SELECT p.oid, p.proname, format('FUNCTION %I.%I(%s)', place, p.proname, pg_get_function_identity_arguments(p.oid))
            FROM pg_catalog.pg_proc p WHERE p.pronamespace = quote_ident(place)::regnamespace)`

// RolesSQL is what [Store.Migrate] does for MigrateRequest.Roles, for who makes
// roles by other means: one statement, which may be run again and again. An
// empty prefix is the schema's name.
func (s *Store) RolesSQL(prefix string) (string, error) {
	if s.box.Bad != nil {
		return "", s.box.Bad
	}
	if prefix == "" {
		prefix = s.opts.Schema
	}
	if !db.Identifier.MatchString(prefix) || len(prefix) > 63-len("_"+roleWriter) {
		return "", &store.UnusableError{
			What: fmt.Sprintf("role prefix %q is not an identifier", prefix),
			Fix:  "use letters, digits and underscores, at most 56, beginning with a letter",
		}
	}
	var names []string
	for _, g := range grants() {
		names = append(names, g.name)
	}
	return strings.NewReplacer("{{objects}}", objects, "{{schema}}", db.Quote(s.opts.Schema), "{{name}}", "'"+s.opts.Schema+"'", "{{prefix}}", "'"+prefix+"'",
		"{{names}}", "{"+strings.Join(names, ",")+"}", "{{decisions}}", decisions()).Replace(rolesSQL), nil
}

// makeRoles does what MigrateRequest.Roles asks for.
func (s *Store) makeRoles(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	text, err := s.RolesSQL(req.RolePrefix)
	if err != nil {
		return nil, err
	}
	err = s.whenFree(ctx, req, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, text)
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" && strings.Contains(pg.Message, "create role") {
		return nil, &store.UnusableError{
			What: "make roles: " + pg.Message,
			Fix:  "let a role with CREATEROLE run: " + s.createRoles(ctx, req.RolePrefix) + " Then migrate again, or grant all of it by `postrider migrate --roles --print-sql`",
			Err:  err,
		}
	}
	if err != nil {
		return nil, s.box.Wrap("make roles", err)
	}
	return &ops.Step{Version: db.Version, Name: "roles", Took: time.Since(start)}, nil
}

// createRoles makes those roles that are missing, also the one of consumers, which the
// command migrate makes behind these: whoever may make roles is asked once.
func (s *Store) createRoles(ctx context.Context, prefix string) string {
	if prefix == "" {
		prefix = s.opts.Schema
	}
	text := ""
	for _, role := range []string{roleWriter, roleRelay, roleReader, roleAdmin, roleConsumer} {
		var there bool
		name := prefix + "_" + role
		err := s.box.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)`, name).Scan(&there)
		if err != nil || !there {
			text += "CREATE ROLE " + db.Quote(name) + " NOLOGIN; "
		}
	}
	return strings.TrimSpace(text)
}

// rolePrefix is that of the roles that this outbox has, "" for none. The detour
// over JSON stands for a column that an older schema lacks.
func (s *Store) rolePrefix(ctx context.Context, q db.Querier) (prefix string, err error) {
	f, err := s.box.SchemaVersion(ctx, q)
	if err != nil || f.Version == 0 {
		return "", err
	}
	err = q.QueryRow(ctx, s.box.SQL(`SELECT coalesce(to_jsonb(i) ->> 'role_prefix', '') FROM {{schema}}.outbox_info i`)).Scan(&prefix)
	return prefix, s.box.Wrap("look for the outbox's roles", err)
}

// grantAgain gives the roles of this outbox, if it has any, what a migration
// has made, before anybody can use it.
func (s *Store) grantAgain(ctx context.Context, tx pgx.Tx) error {
	prefix, err := s.rolePrefix(ctx, tx)
	if err != nil || prefix == "" {
		return err
	}
	text, err := s.RolesSQL(prefix)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, text)
	return err
}

// leaveSchema takes the schema from the roles: nothing else of theirs is left
// when the outbox is gone, and they can be dropped.
func (s *Store) leaveSchema(ctx context.Context, prefix string) error {
	for _, role := range []string{roleWriter, roleRelay, roleReader, roleAdmin} {
		if _, err := s.box.Pool.Exec(ctx, `REVOKE ALL ON SCHEMA `+db.Quote(s.opts.Schema)+` FROM `+db.Quote(prefix+"_"+role)); err != nil {
			return s.box.Wrap("take the schema from its roles", err)
		}
	}
	return nil
}
