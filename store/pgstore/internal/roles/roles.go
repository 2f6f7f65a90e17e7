// Package roles decides what each role may do to the relations of an outbox.
package roles

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// The group roles of an outbox, behind a prefix and an underscore. They cannot
// log in: grant them to those who do.
const (
	Writer = "writer" // inserts messages, reads nothing
	Relay  = "relay"  // carries them
	Reader = "reader" // sees everything but payloads
	Admin  = "admin"  // sees what is parked with its payload, and acts

	Consumer = "consumer" // of an inbox beside the outbox, which makes and grants it
)

// What readers see and writers set. Every column of outbox and parked is in a
// list or, in roles_test.go, among those that are kept back.
const (
	Written = "id, topic, key, type, payload, content_type, headers, version, schema_version, not_before"
	shown   = "xid, seq, created_at, not_before, version, schema_version, id, lane, topic, key, type, content_type, headers, emptied_at"
	erased  = "payload, headers, emptied_at"
	aside   = "pipe, lane, seq, state, captures, due_at, attempts, generation, class, code, error, first_failed, last_attempt, " +
		"parked_at, created_at, not_before, version, schema_version, id, topic, key, type, content_type, headers, history"
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
		{"outbox", "INSERT " + Written, "SELECT; DELETE; UPDATE " + erased, "SELECT " + shown, "SELECT; UPDATE " + erased},
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
		{"audit", "", work, see, "SELECT; INSERT"}, // its trigger forbids deleting entries younger than a week
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
		{"settlement", "", "SELECT; INSERT; DELETE; UPDATE until", see, "SELECT; INSERT; DELETE; UPDATE until"}, // one column, so that rows can be locked
		{"minute", "", work, see, work},
		{"lane", "", see, see, see},
		{"held_by", "", "EXECUTE", "EXECUTE", "EXECUTE"},
		{"messages", "", see, see, see},
		{"states", "", see, see, see},
	}
}

// decisions are the grants as rows of SQL: name, role, privilege, columns.
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

// SQL makes the roles of an outbox in schema and sets what they may do: one
// statement, which may be run again and again. An empty prefix is the schema's name.
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
	var names []string
	for _, g := range grants() {
		names = append(names, g.name)
	}
	return strings.NewReplacer("{{objects}}", objects, "{{schema}}", db.Quote(schema), "{{name}}", "'"+schema+"'", "{{prefix}}", "'"+prefix+"'",
		"{{names}}", "{"+strings.Join(names, ",")+"}", "{{decisions}}", decisions()).Replace(rolesSQL), nil
}

// Need is one privilege of a role on one relation, on some columns of it or all.
type Need struct{ Relation, Privilege, Columns string }

// Needs is what `postrider migrate --roles` grants to the role of a kind.
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
