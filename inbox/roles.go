package inbox

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/internal/inboxsql"
)

// RolesSQL returns the statement that creates the roles of an inbox on PostgreSQL and
// sets their exact rights on the existing tables:
//
//   - consumer processes messages
//   - reader sees everything but payloads and answers
//   - admin acts for people: marks, dead letters, retention
//
// It may be run any number of times, by a role that may create roles and owns the
// tables; [Inbox.Migrate] grants rights on tables that it creates later. schema is that of
// [Options]; prefix is the beginning of the roles' names, before an underscore, "" for the
// schema. Reader and admin are those of the outbox, if there is one beside the inbox.
// The roles cannot log in: grant them to login roles.
func RolesSQL(schema, prefix string) (string, error) {
	longest := 63 // an identifier of PostgreSQL, in bytes
	for _, role := range inboxsql.Roles() {
		longest = min(longest, 63-len("_"+role))
	}
	prefix = rolePrefix(schema, prefix)
	if inboxsql.Clean(prefix, longest) != prefix {
		return "", fmt.Errorf("inbox: the prefix of roles %q must be at most %d bytes of text", inboxsql.Clean(prefix, 64), longest)
	}
	return inboxsql.RolesSQL(schema, prefix), nil
}

// MySQLRoles returns the statements that create the roles of an inbox on MySQL or MariaDB, as
// [RolesSQL] does on PostgreSQL, and grant them their rights on the tables of the session's
// database. They may be run any number of times, by a user who may create roles and grant; they
// take no right away. prefix is "" for postrider.
func MySQLRoles(prefix string) ([]string, error) {
	const longest = 32 - len("_consumer") // the name of a role
	prefix = rolePrefix("", prefix)
	if len(prefix) > longest || strings.ContainsAny(prefix, "'`\\\"\x00\n") {
		return nil, fmt.Errorf("inbox: the prefix of roles %q must have at most %d bytes and no quotes", prefix, longest)
	}
	return inboxsql.MySQLRoles(prefix), nil
}

// RoleNames returns the names of the roles that [RolesSQL] creates.
func RoleNames(schema, prefix string) []string {
	names := inboxsql.Roles()
	for i := range names {
		names[i] = rolePrefix(schema, prefix) + "_" + names[i]
	}
	return names
}

func rolePrefix(schema, prefix string) string {
	switch {
	case prefix != "":
		return prefix
	case schema != "":
		return schema
	}
	return "postrider"
}
