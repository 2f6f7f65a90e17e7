// Package roles decides what each role may do to the relations of an outbox.
package roles

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// The group roles of an outbox, after a prefix and an underscore. They cannot log in: grant
// them to roles that can.
const (
	Writer = "writer" // inserts messages, cannot read
	Relay  = "relay"  // delivers messages
	Reader = "reader" // sees everything but payloads
	Admin  = "admin"  // sees parked records with their payloads, and acts

	Consumer = "consumer" // of an inbox beside the outbox; the inbox makes and grants it
)

// The columns that readers see and writers set. Every column of outbox and parked is in one of
// the lists or, in roles_test.go, in the list of withheld columns.
const (
	Written = "id, topic, key, type, payload, content_type, headers, version, schema_version, not_before"
	shown   = "xid, seq, created_at, not_before, version, schema_version, id, lane, topic, key, type, content_type, headers, emptied_at"
	erased  = "payload, headers, emptied_at"
	aside   = "pipe, lane, seq, state, captures, due_at, attempts, generation, class, code, error, first_failed, last_attempt, " +
		"parked_at, created_at, not_before, version, schema_version, id, topic, key, type, content_type, headers, history"
)

// grant has the privileges of each role on one relation or function, separated by semicolons,
// each followed by its columns unless it covers all of them.
type grant struct{ name, writer, relay, reader, admin string }

// grants covers every relation of the schema and every function that PUBLIC may not call; a
// test fails for a missing one. An object that only the owner uses has an entry without roles.
func grants() []grant {
	const (
		see  = "SELECT"
		work = "SELECT; INSERT; DELETE"
		all  = "SELECT; INSERT; UPDATE; DELETE"
		// The executor of a request must not change its actor, target or reason, but only seq, the
		// start of the next page, and args, which records a replay's generation.
		// The table audit has the original request.
		asked    = "pipe, lane, seq, kind, actor, reason, ask, args, key, upto, gate, rate"
		carryOut = "UPDATE done_at, result, ran_at, moved, gate, seq, args"
	)
	return []grant{
		{"migration", see, see, see, see},
		// Retention removes rows and payloads, erase removes payloads. An admin sees replayed messages anyway.
		{"outbox", "INSERT " + Written, "SELECT; DELETE; UPDATE " + erased, "SELECT " + shown, "SELECT; UPDATE " + erased},
		{"outbox_seq", "USAGE", "SELECT; UPDATE", see, see},
		// The relay lifts a sequence that was set back, and records it.
		{"outbox_info", "", "SELECT; UPDATE restore_epoch, reset_xid, floor", see, see},
		{"pipe", "", "SELECT; INSERT; UPDATE pause_reason", see, "SELECT; INSERT; DELETE; UPDATE paused, paused_at, paused_by, pause_reason"}, // one column, so that rows can be locked
		{"running", "", work, see, work},
		{"progress", "", work, see, work},
		{"relay", "", all, see, all},
		{"parked", "", all, "SELECT " + aside, all},
		// A relay requests acts for --keep-dead.
		{"request", "", "SELECT; DELETE; " + carryOut + "; INSERT " + asked, see, "SELECT; DELETE; " + carryOut + "; INSERT " + asked},
		{"audit", "", work, see, "SELECT; INSERT"}, // its trigger forbids deleting entries younger than a week
		{"hold", "", all, see, all},
		{"repair", "", "SELECT; INSERT; UPDATE", see, all},
		{"retention", "", "SELECT; UPDATE", see, see}, // only the relay removes rows of the outbox, so that no person removes them by hand
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
		// Only relays remove rows and partitions. Every role that acts may count due ones.
		{"partition_note", "", "EXECUTE", "", ""},
		{"partition_make", "", "EXECUTE", "", ""},
		{"partition_roll", "", "EXECUTE", "", ""},
		{"partition_drop", "", "EXECUTE", "", ""},
		{"partition_due", "", "EXECUTE", "", "EXECUTE"},
		{"partition_holder", "", "", "", ""}, // called by partition_drop
		{"partition_young", "", "", "", ""},
		{"partition_book", "", "", "", ""},
		{"lane_cursor", "", see, see, see},
		{"settlement", "", "SELECT; INSERT; DELETE; UPDATE until", see, "SELECT; INSERT; DELETE; UPDATE until"}, // one column, so that rows can be locked
		{"minute", "", work, see, work},
		{"unparked", "", all, see, all},
		{"sample", "", work, see, work},
		{"lane", "", see, see, see},
		{"held_by", "", "EXECUTE", "EXECUTE", "EXECUTE"},
		{"messages", "", see, see, see},
		{"states", "", see, see, see},
	}
}

// decisions returns the grants as rows of SQL: name, role, privilege, columns.
func decisions() string {
	var rows []string
	for _, g := range grants() {
		for _, r := range []struct{ role, privileges string }{
			{Writer, g.writer}, {Relay, g.relay}, {Reader, g.reader}, {Admin, g.admin},
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

// rolesSQL makes the missing roles and sets exactly their privileges on the existing relations
// of the outbox.
const rolesSQL = `DO $roles$
DECLARE
    place  text := {{name}};
    prefix text := {{prefix}};
    who    text;
    g      record;
BEGIN
    IF prefix IS NULL THEN
        RETURN; -- the outbox has no roles
    END IF;
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

// objects lists the relations and functions of the schema in the syntax of GRANT.
const objects = `(
            SELECT c.oid, c.relname AS name, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || format('%I.%I', place, c.relname) AS object
            FROM pg_catalog.pg_class c WHERE c.relnamespace = quote_ident(place)::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
            UNION ALL SELECT p.oid, p.proname, format('FUNCTION %I.%I(%s)', place, p.proname, pg_get_function_identity_arguments(p.oid))
            FROM pg_catalog.pg_proc p WHERE p.pronamespace = quote_ident(place)::regnamespace)`

// SQL returns one idempotent statement that makes the roles of an outbox in schema and sets
// their privileges. An empty prefix means the schema's name.
func SQL(schema, prefix string) (string, error) {
	if prefix == "" {
		prefix = schema
	}
	if !db.Identifier.MatchString(prefix) || len(prefix) > 63-len("_"+Writer) {
		return "", &store.UnusableError{
			What: fmt.Sprintf("role prefix %q is not an identifier", prefix),
			Fix:  "use letters, digits and underscores, at most 56, beginning with a letter",
		}
	}
	return render(schema, "'"+prefix+"'"), nil
}

// Again returns the statement of SQL for the roles that the outbox in schema has when it is
// executed. It changes nothing where the outbox has none.
func Again(schema string) string {
	// As JSON: older schemas lack the column.
	return render(schema, "(SELECT to_jsonb(i) ->> 'role_prefix' FROM {{schema}}.outbox_info i)")
}

// render fills in rolesSQL; prefix is an expression.
func render(schema, prefix string) string {
	var names []string
	for _, g := range grants() {
		names = append(names, g.name)
	}
	text := strings.ReplaceAll(rolesSQL, "{{prefix}}", prefix)
	return strings.NewReplacer("{{objects}}", objects, "{{schema}}", db.Quote(schema), "{{name}}", "'"+schema+"'",
		"{{names}}", "{"+strings.Join(names, ",")+"}", "{{decisions}}", decisions()).Replace(text)
}

// Need is one privilege of a role on one relation, on some columns of it or all.
type Need struct{ Relation, Privilege, Columns string }

// Needs returns the privileges that `postrider migrate --roles` grants to the role of a kind.
func Needs(kind string) []Need {
	var all []Need
	for _, g := range grants() {
		granted := map[string]string{Writer: g.writer, Relay: g.relay, Reader: g.reader, Admin: g.admin}[kind]
		for _, p := range strings.Split(granted, ";") {
			privilege, columns, _ := strings.Cut(strings.TrimSpace(p), " ")
			if privilege != "" && privilege != "EXECUTE" {
				all = append(all, Need{g.name, privilege, columns})
			}
		}
	}
	return all
}
