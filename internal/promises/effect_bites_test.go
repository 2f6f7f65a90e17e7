package promises

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxtest"
)

// bend is a defect of a database, a driver or a dialect.
type bend struct {
	has      string // in statements that contain this text
	old, new string // old is replaced with new
	args     func(args []any)
	asOne    bool // every such statement reports one row
	apart    bool // the statement is committed on its own, outside of its transaction
	hasty    bool // an id that an open transaction claims counts as claimed
	unlocked bool // a key that an open transaction moves counts as moved
}

// bent is a connection with bends.
type bent struct {
	inbox.Conn
	db    *sql.DB
	bends []bend
	hits  *atomic.Int32
	ends  func(inbox.Conn) (commit, rollback func() error)
}

func (b *bent) change(query string, args []any) (string, []any, bend) {
	args = append([]any(nil), args...)
	var on bend
	for _, x := range b.bends {
		if !strings.Contains(query, x.has) || x.old != "" && !strings.Contains(query, x.old) {
			continue
		}
		b.hits.Add(1)
		if x.old != "" {
			query = strings.ReplaceAll(query, x.old, x.new)
		}
		if x.args != nil {
			x.args(args)
		}
		on = x
	}
	return query, args, on
}

type rows int64

func (rows) LastInsertId() (int64, error)   { return 0, nil }
func (r rows) RowsAffected() (int64, error) { return int64(r), nil }

func (b *bent) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, args, on := b.change(query, args)
	if on.hasty {
		var mine bool
		if err := b.Conn.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtext($1))", args[1]).Scan(&mine); err != nil || !mine {
			return rows(0), err
		}
	}
	if on.apart {
		return b.db.ExecContext(ctx, query, args...)
	}
	res, err := b.Conn.ExecContext(ctx, query, args...)
	if on.asOne && err == nil {
		return rows(1), nil
	}
	return res, err
}

func (b *bent) QueryRow(ctx context.Context, query string, args ...any) inbox.Row {
	query, args, on := b.change(query, args)
	if on.unlocked {
		var mine bool
		if err := b.Conn.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtext($1))", args[2]).Scan(&mine); err != nil || !mine {
			return b.Conn.QueryRow(ctx, "SELECT 1, 0")
		}
	}
	if on.apart {
		return b.db.QueryRowContext(ctx, query, args...)
	}
	return b.Conn.QueryRow(ctx, query, args...)
}

func (b *bent) Commit() error {
	if b.ends == nil {
		return b.Conn.Commit()
	}
	commit, _ := b.ends(b.Conn)
	return commit()
}

func (b *bent) Rollback() error {
	if b.ends == nil {
		return b.Conn.Rollback()
	}
	_, rollback := b.ends(b.Conn)
	return rollback()
}

// breaker breaks one part of an Env.
type breaker func(e *inboxtest.Env, db *sql.DB, hits *atomic.Int32)

func bends(list ...bend) breaker {
	return func(e *inboxtest.Env, db *sql.DB, hits *atomic.Int32) {
		wrap(e, func(c inbox.Conn) inbox.Conn { return &bent{Conn: c, db: db, bends: list, hits: hits} })
	}
}

// wrap wraps the connections of the inbox's transactions, and builds Once and OnceBatch
// on them.
func wrap(e *inboxtest.Env, with func(inbox.Conn) inbox.Conn) {
	inner, line := e.Begin, e.Line.Begin
	begin := func(from func(context.Context) (inbox.Conn, error)) func(context.Context) (inbox.Conn, error) {
		return func(ctx context.Context) (inbox.Conn, error) {
			tx, err := from(ctx)
			if err != nil {
				return nil, err
			}
			return with(tx), nil
		}
	}
	e.Begin, e.Line.Begin = begin(inner), begin(line)
	e.OnceBatch = func(ctx context.Context, in *inbox.Inbox, msgs []postrider.Message, fn func(inbox.Conn, []postrider.Message) error) error {
		return within(ctx, e.Begin, func(tx inbox.Conn) error {
			claimed, err := in.ClaimBatch(ctx, tx, msgs)
			if err != nil {
				return err
			}
			var fresh []postrider.Message
			for i := range msgs {
				if claimed[i] {
					fresh = append(fresh, msgs[i])
				}
			}
			if len(fresh) == 0 {
				return nil
			}
			return fn(tx, fresh)
		})
	}
	e.Once = func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
		return within(ctx, e.Begin, func(tx inbox.Conn) error {
			if fresh, err := in.Claim(ctx, tx, m); err != nil || !fresh {
				return err
			}
			return fn(tx)
		})
	}
}

func within(ctx context.Context, begin func(context.Context) (inbox.Conn, error), fn func(inbox.Conn) error) error {
	tx, err := begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(inbox.Classify(err), tx.Rollback())
	}
	return inbox.Classify(tx.Commit())
}

// ending replaces commit and rollback.
func ending(ends func(inbox.Conn) (commit, rollback func() error)) breaker {
	return func(e *inboxtest.Env, db *sql.DB, hits *atomic.Int32) {
		hits.Add(1)
		wrap(e, func(c inbox.Conn) inbox.Conn { return &bent{Conn: c, db: db, hits: hits, ends: ends} })
	}
}

// claimedApart commits the claim before the handler runs.
func claimedApart(e *inboxtest.Env, _ *sql.DB, hits *atomic.Int32) {
	hits.Add(1)
	e.Once = func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
		fresh := false
		err := within(ctx, e.Begin, func(tx inbox.Conn) (err error) { fresh, err = in.Claim(ctx, tx, m); return err })
		if err != nil || !fresh {
			return err
		}
		return within(ctx, e.Begin, fn)
	}
}

// remembered checks memory first, which contains a message as soon as its handler starts.
func remembered(e *inboxtest.Env, _ *sql.DB, hits *atomic.Int32) {
	hits.Add(1)
	var seen sync.Map
	once := e.Once
	e.Once = func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
		if _, there := seen.LoadOrStore(m.ID, true); there {
			return nil
		}
		return once(ctx, in, m, fn)
	}
}

// laterPage lists dead letters from the given id on, including it.
type laterPage struct{ inbox.Querier }

func (l laterPage) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return l.Querier.QueryContext(ctx, strings.ReplaceAll(query, "a.message_id > $2", "a.message_id >= $2"), args...)
}

// rulesOfGo are decided in Go, before any statement: the database cannot break them.
var rulesOfGo = []string{"once/refuses", "order/no-place", "prune/refuses"}

func breakers() map[string]breaker {
	doubled := bends(bend{has: "VALUES ($1, $2, $3, $4, now()) ON CONFLICT (consumer, message_id)", old: "DO NOTHING", new: "DO UPDATE SET type = excluded.type"})
	manyDoubled := bends(bend{has: "string_to_array(", old: "DO NOTHING", new: "DO UPDATE SET type = excluded.type"})
	const moves, drops = "WITH moved AS", "AND needs <= $3"
	return map[string]breaker{
		"once/one-effect":            doubled,
		"once/rolls-back":            claimedApart,
		"once/at-once":               remembered,
		"once/consumers-apart":       bends(bend{has: "processed_at)\nVALUES", old: "VALUES ($1", new: "VALUES (lower(btrim($1))"}),
		"claim/waits":                bends(bend{has: "processed_at)\nVALUES", hasty: true}),
		"claim/with-the-transaction": bends(bend{has: "processed_at)\nVALUES", apart: true}),
		"claim/ids-are-bytes":        bends(bend{has: "processed_at)\nVALUES", old: "$2", new: "lower($2)"}),
		"claim/any-text":             bends(bend{has: "string_to_array(", args: func(args []any) { args[1] = strings.ReplaceAll(args[1].(string), `\`, "/") }}),
		"batch/leaves-out":           manyDoubled,
		"batch/all-or-nothing":       ending(func(c inbox.Conn) (commit, rollback func() error) { return c.Commit, c.Commit }),
		"batch/at-once":              manyDoubled,
		"batch/ids-are-bytes":        bends(bend{has: "string_to_array(", old: "e.id,", new: "lower(e.id),"}),
		"batch/recorded":             bends(bend{has: "ORDER BY begun_at DESC", old: "owner <> $2", new: "owner <> $2 || 'x'"}),
		"result/kept":                bends(bend{has: "SET result = $3", args: func(args []any) { args[2] = []byte("{}") }}),
		"result/once":                bends(bend{has: "SET result = $3", old: " AND result IS NULL", new: ""}),
		"result/busy":                bends(bend{has: "pg_try_advisory_xact_lock", old: "ELSE 2 END", new: "ELSE 0 END"}),
		"order/latest":               bends(bend{has: moves, old: "m.version < excluded.version", new: "m.version <= excluded.version"}),
		"order/contiguous":           bends(bend{has: moves, old: "m.version >= CAST($5 AS bigint)", new: "true"}),
		"order/announced": bends(bend{has: moves, args: func(args []any) {
			if args[4] != int64(0) {
				args[4] = args[3].(int64) - 1
			}
		}}),
		"order/apart":                bends(bend{has: moves, old: "$3", new: "lower($3)"}, bend{has: "$3, 0, now())", old: "$3", new: "lower($3)"}),
		"order/with-the-transaction": bends(bend{has: moves, apart: true}),
		"order/one-at-a-time":        bends(bend{has: moves, unlocked: true}),
		"order/first-at-once":        bends(bend{has: moves, old: "CAST($5 AS bigint) = 0\nOR", new: "$5::bigint = $5::bigint OR"}),
		"order/never-forgets":        forgetful,
		"order/set":                  bends(bend{has: "SET version = $4", old: "version = $4", new: "version = greatest(version, $4)"}),
		"stash/whole-message":        bends(bend{has: "created_at, stashed_at)", args: func(args []any) { args[11] = "{}" }}),
		"stash/catch-up":             bends(bend{has: "AND w.needs <= CAST($4", old: "w.needs <= CAST($4 AS bigint)", new: "true"}, bend{has: "r.needs <= CAST($4", old: "r.needs <= CAST($4 AS bigint)", new: "true"}),
		"stash/enough":               bends(bend{has: "SET version = $4", old: "version = $4", new: "version = version + 0 * $4"}),
		"stash/fails-whole":          ending(func(c inbox.Conn) (commit, rollback func() error) { return c.Commit, c.Commit }),
		"stash/due":                  bends(bend{has: "hop(", old: "n.needs <= ", new: "0 <= "}),
		"stash/due-later":            bends(bend{has: "hop(", old: "a.state = 'retry' AND a.next_at <= now()", new: "a.state = 'retry'"}),
		"stash/keeps-attempts":       bends(bend{has: "state = 'retry' AND NOT EXISTS", old: "s.message_id = $2", new: "s.message_id < $2"}),
		"stash/taken-once":           bends(bend{has: drops, asOne: true}),
		"stash/behind-one-dead":      bends(bend{has: "hop(", old: "(n.topic, n.key, n.needs) > (h.", new: "(n.topic || '', n.key, n.needs) > (h."}),
		"stash/lowest-version":       bends(bend{has: "hop(", old: "ORDER BY n.topic, n.key, n.version LIMIT", new: "ORDER BY n.needs, n.version LIMIT"}),
		"gap/reported":               bends(bend{has: "hop(", old: "WHERE h.needs > h.mark", new: ""}),
		"gap/given-up":               bends(bend{has: "SET version = $4", old: "version = $4", new: "version = version + 0 * $4"}),
		"gap/tried":                  bends(bend{has: "version IS NULL OR", args: func(args []any) { args[4] = args[3] }}),
		"gap/in-hand":                bends(bend{has: "FOR UPDATE SKIP LOCKED", old: "FOR UPDATE SKIP LOCKED", new: ""}),
		"attempt/counted":            bends(bend{has: "AS a\n(consumer", old: "a.attempts + CASE", new: "a.attempts + 1 + CASE"}),
		"attempt/orphan":             bends(bend{has: "AS a\n(consumer", old: "OR CAST($9 AS integer) = 1", new: "OR CAST($9 AS integer) < 2"}),
		"attempt/returned":           bends(bend{has: "attempts - 1", old: "begun_by = $3", new: "begun_by > '' AND CAST($3 AS text) > ''"}),
		"attempt/failed":             bends(bend{has: "a.attempts + $9", old: "next_at = excluded.next_at", new: "next_at = a.next_at"}),
		"attempt/listed": func(e *inboxtest.Env, _ *sql.DB, hits *atomic.Int32) {
			hits.Add(1)
			e.DB = laterPage{e.DB}
		},
		"attempt/outlives":   ending(func(c inbox.Conn) (commit, rollback func() error) { return c.Rollback, c.Rollback }),
		"dead/whole-message": bends(bend{has: "'dead', $8", args: func(args []any) { args[8] = []byte("{}") }}),
		"dead/claimed":       doubled,
		"dead/pages": func(e *inboxtest.Env, _ *sql.DB, hits *atomic.Int32) {
			hits.Add(1)
			e.DB = laterPage{e.DB}
		},
		"dead/revived":             bends(bend{has: drops, asOne: true}),
		"dead/in-turn":             bends(bend{has: "created_at, stashed_at)", args: func(args []any) { args[6] = args[6].(int64) + 1 }}),
		"dead/discarded":           bends(bend{has: "coalesce(max(topic), '')", old: "coalesce(max(version), 0)", new: "0"}),
		"dead/without-topic":       bends(bend{has: "coalesce(max(topic), '')", old: "count(*)", new: "count(nullif(topic, ''))"}),
		"dead/any-key":             bends(bend{has: "'dead', $8", args: func(args []any) { args[14] = nil }}),
		"dead/undecodable":         bends(bend{has: "'dead', $8", args: func(args []any) { args[15] = nil }}),
		"dead/stashed":             bends(bend{has: drops, old: "needs <= $3", new: "needs > $3"}),
		"prune/old-only":           bends(bend{has: "LIMIT $3", old: "LIMIT $3", new: "LIMIT $3 + 100"}),
		"prune/keeps":              bends(bend{has: "LIMIT $3", old: "s.message_id = i.message_id", new: "s.message_id = ''"}),
		"schema/twice":             bends(bend{has: "CREATE TABLE", old: "v.version >= ", new: "v.version < "}, bend{has: "CREATE TABLE", old: "CREATE TABLE IF NOT EXISTS", new: "CREATE TABLE"}),
		"outcome/kept":             bends(bend{has: "THEN 'a' ELSE 's'", old: "ELSE 's'", new: "ELSE 'a'"}),
		"outcome/unknown":          bends(bend{has: "AS i ON i.consumer = $1", old: "i.consumer = $1", new: "coalesce($1, '') <> ''"}),
		"journal/append-only":      loose,
		"history/contiguous":       bends(bend{has: moves, old: "m.version >= CAST($5 AS bigint)", new: "true"}),
		"history/latest":           bends(bend{has: moves, old: "m.version < excluded.version", new: "true"}),
		"crash/between-statements": bends(bend{has: "processed_at)\nVALUES", apart: true}),
		"crash/lost-answer":        bends(bend{has: "processed_at)\nVALUES", apart: true}),
	}
}

// forgetful prunes the marks together with the claims.
func forgetful(e *inboxtest.Env, db *sql.DB, hits *atomic.Int32) {
	marks := `"` + e.Schema + `".inbox_mark`
	bends(bend{has: "LIMIT $3", old: "DELETE FROM", new: "WITH gone AS (DELETE FROM " + marks + ") DELETE FROM"})(e, db, hits)
}

// loose has a journal without triggers.
func loose(e *inboxtest.Env, db *sql.DB, hits *atomic.Int32) {
	if _, err := db.Exec(`ALTER TABLE "` + e.Schema + `".inbox_journal DISABLE TRIGGER ALL`); err == nil {
		hits.Add(1)
	}
}

// TestInboxSuiteBites breaks one rule at a time and requires that its case fails.
func TestInboxSuiteBites(t *testing.T) {
	db, broken := newSuiteDB(t, "18"), breakers()
	for _, name := range rulesOfGo {
		broken[name] = nil
	}
	for _, c := range inboxtest.Cases() {
		brk, there := broken[c.Name]
		if delete(broken, c.Name); brk == nil {
			if !there {
				t.Errorf("case %s: no broken inbox makes it fail; add one", c.Name)
			}
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			env := db.stdlib(t)
			var hits atomic.Int32
			brk(env, db.sql["pgx"], &hits)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			err := inboxtest.Check(ctx, c, env)
			switch {
			case hits.Load() == 0:
				t.Error("the bend matched no statement: adapt it to the present statement")
			case err == nil || errors.Is(err, inboxtest.ErrNotApplicable) || ctx.Err() != nil:
				t.Errorf("the broken inbox passes: %v", err)
			}
			t.Log(err)
		})
	}
	for name := range broken {
		t.Errorf("case %s does not exist", name)
	}
}
