package inboxsql

import "strings"

// Roles are the names of the roles of an inbox on PostgreSQL, behind a prefix and
// an underscore: it processes messages, it sees everything but payloads and
// answers, it acts for people (marks, dead letters, retention).
func Roles() []string { return []string{roleConsumer, roleReader, roleAdmin} }

const (
	roleConsumer = "consumer"
	roleReader   = "reader"
	roleAdmin    = "admin"
)

// grant says what each role may do to a relation or function: privileges, each
// with the columns behind it if it is not for all of them, separated by
// semicolons.
type grant struct{ name, consumer, reader, admin string }

// grants decides for every relation of an inbox, and every function; a test fails
// for one that is not here.
func grants() []grant {
	const (
		see     = "SELECT"
		add     = "SELECT; INSERT"
		claim   = "SELECT consumer, message_id, topic, type, status, processed_at"
		attempt = "SELECT consumer, message_id, topic, key, type, origin, attempts, state, begun_by, alone, last_error, next_at, updated_at, " +
			"content_type, headers, version, schema_version, created_at, raw_key, undecodable"
		stashed = "SELECT consumer, message_id, topic, key, type, origin, needs, version, schema_version, content_type, headers, created_at, stashed_at, raw_key, undecodable"
	)
	return []grant{
		{"inbox_schema", see, see, see},
		// The role that processes messages does not delete them. Retention also locks the rows that it removes.
		{"inbox", "SELECT; INSERT; UPDATE status, result", claim, "SELECT; DELETE; UPDATE status"},
		{"inbox_attempt", "SELECT; INSERT; UPDATE; DELETE", attempt, "SELECT; DELETE"},
		{"inbox_mark", "SELECT; INSERT; UPDATE version, updated_at", see, "SELECT; INSERT; UPDATE version, updated_at"},
		{"inbox_stash", "SELECT; INSERT; DELETE", stashed, add}, // what is tried again goes through the stash
		{"inbox_batch", "SELECT; INSERT; UPDATE; DELETE", see, see},
		{"inbox_journal", "INSERT", see, add},
		{"claim", "EXECUTE", "", ""},
		{"claim_version", "EXECUTE", "", ""},
		{"inbox_journal_is_append_only", "", "", ""}, // called by its trigger
	}
}

// grantRows are the grants as lines of text: name, role, privilege, columns.
func grantRows() string {
	var rows []string
	for _, g := range grants() {
		for _, r := range []struct{ role, privileges string }{{roleConsumer, g.consumer}, {roleReader, g.reader}, {roleAdmin, g.admin}} {
			privileges := strings.Split(r.privileges, ";") // "": everything is taken back, nothing granted
			for _, p := range privileges {
				privilege, columns, _ := strings.Cut(strings.TrimSpace(p), " ")
				rows = append(rows, strings.Join([]string{g.name, r.role, privilege, columns}, "|"))
			}
		}
	}
	return strings.Join(rows, "\n")
}

// MySQLRoles are the statements that make the roles of an inbox on MySQL and MariaDB, and grant
// what they may do on the tables of the session's database. prefix has no quotes.
func MySQLRoles(prefix string) []string {
	var all []string
	for _, role := range Roles() {
		all = append(all, "CREATE ROLE IF NOT EXISTS '"+prefix+"_"+role+"'")
	}
	for line := range strings.Lines(grantRows()) {
		part := strings.Split(strings.TrimSpace(line), "|")
		name, role, privilege, columns := part[0], part[1], part[2], part[3]
		if privilege == "" || !strings.HasPrefix(name, "inbox") { // PostgreSQL's functions
			continue
		}
		// INSERT ... ON DUPLICATE KEY UPDATE, which locks a mark or stashes a message again, needs UPDATE
		// of columns that stay what they are.
		switch {
		case name == "inbox_mark" && privilege == "UPDATE":
			columns = ""
		case name == "inbox_stash" && privilege == "INSERT":
			privilege = "INSERT, UPDATE"
		}
		if columns != "" {
			privilege += " (`" + strings.ReplaceAll(columns, ", ", "`, `") + "`)"
		}
		all = append(all, "GRANT "+privilege+" ON postrider_"+name+" TO '"+prefix+"_"+role+"'")
	}
	return all
}

const (
	postgresRoles = `DO $roles$
DECLARE
	prefix text := {'prefix'};
	who text;
	g record;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtext('postrider inbox schema'));
	FOREACH who IN ARRAY ARRAY['consumer', 'reader', 'admin'] LOOP
		IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = prefix || '_' || who) THEN
			BEGIN
				EXECUTE format('CREATE ROLE %I NOLOGIN', prefix || '_' || who);
			EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- for another inbox, at the same time
			END;
		END IF;
	END LOOP;
	IF to_regclass({'version'}) IS NOT NULL THEN
		UPDATE {version} SET role_prefix = prefix WHERE role_prefix <> prefix;
	END IF;
` + postgresGrants + `
END $roles$`

	// prefix is set. A privilege "" takes away what was granted by hand.
	postgresGrants = `
	FOR g IN
		WITH line AS (SELECT string_to_array(l, '|') AS part FROM unnest(string_to_array({grants}, E'\n')) AS l),
		object AS (
			SELECT c.oid, c.relname AS name, format('TABLE %I.%I', n.nspname, c.relname) AS object
			FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
			WHERE n.oid = to_regnamespace({'schema'}) AND c.relkind IN ('r', 'p')
			UNION ALL
			SELECT p.oid, p.proname, format('FUNCTION %I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
			FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.oid = to_regnamespace({'schema'}))
		SELECT r.rolname, o.object, l.part[3] AS privilege, l.part[4] <> '' AS listed,
			(SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute AS a
			 WHERE a.attrelid = o.oid AND a.attname = ANY (string_to_array(l.part[4], ', '))) AS columns,
			row_number() OVER (PARTITION BY r.rolname, o.object ORDER BY l.part[3], l.part[4]) = 1 AS first
		FROM line AS l JOIN object AS o ON o.name = l.part[1] JOIN pg_catalog.pg_roles AS r ON r.rolname = prefix || '_' || l.part[2]
		ORDER BY o.object, r.rolname, l.part[3], l.part[4]
	LOOP
		IF g.first THEN
			EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', {'schema'}, g.rolname);
			EXECUTE format('REVOKE ALL ON %s FROM %I', g.object, g.rolname);
		END IF;
		IF g.privilege <> '' AND (NOT g.listed OR g.columns IS NOT NULL) THEN
			EXECUTE format('GRANT %s%s ON %s TO %I', g.privilege, CASE WHEN g.listed THEN ' (' || g.columns || ')' END, g.object, g.rolname);
		END IF;
	END LOOP;`
)
