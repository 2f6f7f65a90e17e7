package mysqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// The roles of an outbox, after a prefix and an underscore.
const (
	roleWriter = "writer" // inserts messages, cannot read
	roleRelay  = "relay"  // delivers messages
	roleReader = "reader" // sees everything but payloads
	roleAdmin  = "admin"  // sees payloads, and acts
)

// The columns that writers set and readers see.
const (
	written = "id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before"
	shown   = "seq, lane, size, id, topic, `key`, type, content_type, headers, version, schema_version, not_before, created_at"
	aside   = "pipe, seq, lane, state, captures, due_at, attempts, generation, class, code, error, first_failed, last_attempt, history, expected, queue, place, " +
		"id, topic, `key`, type, content_type, headers, version, schema_version, not_before, created_at"
)

// grant has the privileges of each role on one table or view, "" for none.
type grant struct{ table, writer, relay, reader, admin string }

// grants decides for every table and view of an outbox; a test fails for a missing one.
func grants() []grant {
	const (
		see = "SELECT"
		all = "SELECT, INSERT, UPDATE, DELETE"
	)
	return []grant{
		{"migration", see, see, see, see},
		// Only relays remove rows, so that no person removes them by hand.
		{"outbox", "INSERT (" + written + ")", "SELECT, DELETE", "SELECT (" + shown + ")", see},
		{"info", "", "SELECT, UPDATE (epoch, server, started)", see, "SELECT, UPDATE (epoch, server, started)"},
		{"pipe", "", "SELECT, INSERT", see, all},
		{"progress", "", "SELECT, INSERT, UPDATE", see, all},
		{"relay", "", all, see, all},
		{"report", "", all, see, all},
		{"parked", "", all, "SELECT (" + aside + ")", all},
		{"act", "", all, see, all},
		{"journal", "", "SELECT, INSERT", see, "SELECT, INSERT"},
		{"hold", "", all, see, all},
		{"stop", "", all, see, all},
		{"repair", "", "SELECT, INSERT, UPDATE", see, all},
		{"retention", "", "SELECT, UPDATE", see, "SELECT, UPDATE"},
		{"times", "", all, see, all},
		{"unparked", "", all, see, all},
		{"sample", "", all, see, all},
		{"dropped", "", all, see, all},
		{"alarm", "", "SELECT, INSERT, UPDATE", see, all},
		{"lane", "", see, see, see},
		{"unsettled", "", see, see, see},
		{"messages", "", see, see, see},
	}
}

// roleStatements make the roles and grant what they may do. Each can be repeated.
func roleStatements(prefix string) ([]string, error) {
	const longest = 32 - len("_consumer") // a role's name on MySQL
	if prefix == "" {
		prefix = "postrider"
	}
	if len(prefix) > longest || strings.ContainsAny(prefix, "'`\\\"\x00\n") {
		return nil, fmt.Errorf("mysql: the prefix of roles %q must have at most %d bytes and no quotes", prefix, longest)
	}
	name := func(role string) string { return "'" + prefix + "_" + role + "'" }
	var all []string
	for _, role := range []string{roleWriter, roleRelay, roleReader, roleAdmin} {
		all = append(all, "CREATE ROLE IF NOT EXISTS "+name(role))
	}
	// Relays, and a person who does a relay's work, see when statements of other sessions began.
	all = append(all, "GRANT PROCESS ON *.* TO "+name(roleRelay), "GRANT PROCESS ON *.* TO "+name(roleAdmin))
	for _, g := range grants() {
		for _, r := range []struct{ role, privileges string }{
			{roleWriter, g.writer}, {roleRelay, g.relay}, {roleReader, g.reader}, {roleAdmin, g.admin},
		} {
			if r.privileges != "" {
				all = append(all, "GRANT "+r.privileges+" ON postrider_"+g.table+" TO "+name(r.role))
			}
		}
	}
	return all, nil
}

// RolesSQL implements ops.Roles. The statements grant on the tables of the session's database.
func (s desk) RolesSQL(prefix string) (string, error) {
	all, err := roleStatements(prefix)
	if err != nil {
		return "", err
	}
	return strings.Join(all, ";\n") + ";\n", nil
}

// makeRoles makes the roles and grants.
func (s *Store) makeRoles(ctx context.Context, q db.Querier, prefix string) error {
	all, err := roleStatements(prefix)
	if err != nil {
		return err
	}
	for _, statement := range all {
		_, err := q.ExecContext(ctx, statement)
		switch db.Code(err) {
		case db.ErrNeedsPrivilege, db.ErrMayNotGrant, db.ErrAccess, db.ErrAccessDB, db.ErrTableDenied:
			return &store.UnusableError{
				What: "the user may not make roles or grant: " + err.Error(), Err: err,
				Fix: "let an administrator run the statements of `postrider migrate --roles --print-sql` behind the last CREATE TABLE",
			}
		}
		if err != nil {
			return s.box.Wrap("make the roles", err)
		}
	}
	return nil
}
