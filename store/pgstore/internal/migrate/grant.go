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

// RolesSQL is what [Migrator.Migrate] does for MigrateRequest.Roles, for who makes
// roles by other means: see [roles.SQL].
func (s *Migrator) RolesSQL(prefix string) (string, error) {
	if s.Bad != nil {
		return "", s.Bad
	}
	return roles.SQL(s.Schema, prefix)
}

// makeRoles does what MigrateRequest.Roles asks for.
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

// createRoles makes those roles that are missing, also the one of consumers, which the
// command migrate makes behind these: whoever may make roles is asked once.
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

// rolePrefix is that of the roles that this outbox has, "" for none. The detour
// over JSON stands for a column that an older schema lacks.
func (s *Migrator) rolePrefix(ctx context.Context, q db.Querier) (prefix string, err error) {
	f, err := s.Found(ctx, q)
	if err != nil || f.Version == 0 {
		return "", err
	}
	err = q.QueryRow(ctx, s.Render(`SELECT coalesce(to_jsonb(i) ->> 'role_prefix', '') FROM {{schema}}.outbox_info i`)).Scan(&prefix)
	return prefix, s.Wrap("look for the outbox's roles", err)
}

// grantAgain gives the roles of this outbox, if it has any, what a migration
// has made, before anybody can use it.
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

// leaveSchema takes the schema from the roles: nothing else of theirs is left
// when the outbox is gone, and they can be dropped.
func (s *Migrator) leaveSchema(ctx context.Context, prefix string) error {
	for _, role := range []string{roles.Writer, roles.Relay, roles.Reader, roles.Admin} {
		if _, err := s.Pool.Exec(ctx, `REVOKE ALL ON SCHEMA `+db.Quote(s.Schema)+` FROM `+db.Quote(prefix+"_"+role)); err != nil {
			return s.Wrap("take the schema from its roles", err)
		}
	}
	return nil
}
