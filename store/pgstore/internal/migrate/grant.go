package migrate

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/roles"
)

// RolesSQL returns the statements of [Migrator.Migrate] for MigrateRequest.Roles, for tools that
// make roles by other means: see [roles.SQL].
func (s *Migrator) RolesSQL(prefix string) (string, error) {
	if s.Bad != nil {
		return "", s.Bad
	}
	return roles.SQL(s.Schema, prefix)
}

// makeRoles executes MigrateRequest.Roles.
func (s *Migrator) makeRoles(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
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
		return nil, s.Wrap("make roles", err)
	}
	return &ops.Step{Version: db.Version, Name: "roles", Took: time.Since(start)}, nil
}

// createRoles returns the statements that make the missing roles, including the consumer's,
// which the command migrate makes after these: a privileged person then acts only once.
func (s *Migrator) createRoles(ctx context.Context, prefix string) string {
	if prefix == "" {
		prefix = s.Schema
	}
	text := ""
	for _, role := range []string{roles.Writer, roles.Relay, roles.Reader, roles.Admin, roles.Consumer} {
		var there bool
		name := prefix + "_" + role
		err := s.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)`, name).Scan(&there)
		if err != nil || !there {
			text += "CREATE ROLE " + db.Quote(name) + " NOLOGIN; "
		}
	}
	return strings.TrimSpace(text)
}

// rolePrefix returns the prefix of this outbox's roles, "" if it has none. It reads the row as
// JSON, because an older schema lacks the column.
func (s *Migrator) rolePrefix(ctx context.Context, q db.Querier) (prefix string, err error) {
	f, err := s.Found(ctx, q)
	if err != nil || f.Version == 0 {
		return "", err
	}
	err = q.QueryRow(ctx, s.Render(`SELECT coalesce(to_jsonb(i) ->> 'role_prefix', '') FROM {{schema}}.outbox_info i`)).Scan(&prefix)
	return prefix, s.Wrap("look for the outbox's roles", err)
}

// grantAgain grants a migration's new objects to the roles of this outbox, if any, in the same
// transaction.
func (s *Migrator) grantAgain(ctx context.Context, tx pgx.Tx) error {
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

// leaveSchema revokes the schema from the roles. It is their last privilege when the outbox is
// removed, so they can be dropped.
func (s *Migrator) leaveSchema(ctx context.Context, prefix string) error {
	for _, role := range []string{roles.Writer, roles.Relay, roles.Reader, roles.Admin} {
		if _, err := s.Pool.Exec(ctx, `REVOKE ALL ON SCHEMA `+db.Quote(s.Schema)+` FROM `+db.Quote(prefix+"_"+role)); err != nil {
			return s.Wrap("take the schema from its roles", err)
		}
	}
	return nil
}
