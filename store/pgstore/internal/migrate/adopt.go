package migrate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// adoptSQL returns the statements of adopt.
func (st *texts) adoptSQL(q func(string) string) {
	st.home = q(`SELECT i.cluster = (pg_control_system()).system_identifier FROM {{schema}}.outbox_info i`)
	// Every writing transaction has ended and its rows are visible: present rows are at or
	// below the floor, later rows above it.
	st.adoptLock = q(`LOCK TABLE {{schema}}.outbox IN SHARE ROW EXCLUSIVE MODE`)
	st.adoptFloor = q(`SELECT setval('{{schema}}.outbox_seq'::regclass, greatest(s.last_value, 1, ` + db.Highest + `))
FROM {{schema}}.outbox_seq s`)
	// Logical replication carries rows but no sequences: ids continue after the replicated
	// ones.
	st.adoptIDs = q(`DO $ids$
DECLARE g record;
BEGIN
    FOR g IN SELECT a.attname, c.oid::regclass::text AS tab, pg_get_serial_sequence(c.oid::regclass::text, a.attname) AS seq
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attidentity <> '' AND NOT a.attisdropped
        WHERE c.relnamespace = '{{schema}}'::regnamespace AND c.relkind = 'r'
    LOOP
        EXECUTE format('SELECT setval(%L::regclass, greatest(q.last_value, (SELECT coalesce(max(%I), 1) FROM %s))) FROM %s q',
            g.seq, g.attname, g.tab, g.seq);
    END LOOP;
END;
$ids$`)
	// Transactions of the other server have ended. Their rows behind a cursor are delivered
	// as after the end of any transaction. A partly delivered set restarts only if another
	// set joins it.
	st.adoptLanes = q(`INSERT INTO {{schema}}.progress (pipe, lane, n, owner, pos, low, next_xid, draining, drain_seq, delivered)
SELECT c.pipe, c.lane, c.n + 1, '', c.pos, c.low, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
 nullif(c.inflight + c.draining, '{}'),
 CASE WHEN c.inflight + c.draining = '{}' THEN NULL WHEN c.inflight = '{}' THEN c.drain_seq ELSE c.low END, c.delivered
FROM {{schema}}.lane_cursor c ORDER BY c.pipe, c.lane`)
	st.adoptInfo = q(`UPDATE {{schema}}.outbox_info SET cluster = (pg_control_system()).system_identifier, floor = $1, reset_xid = 0,
 restore_epoch = restore_epoch + 1`)
	st.adoptRelays = q(`DELETE FROM {{schema}}.relay`)
	st.liftSQL(q)
}

// adopt makes the outbox one of this server. It marks an outbox from another server, so that
// no transaction id of the old server is used again. In an outbox of this server it lifts a
// sequence that was set back. It returns nil if there was nothing to do.
func (s *Migrator) adopt(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	home := false
	if err := s.Pool.QueryRow(ctx, s.sql.home).Scan(&home); err != nil {
		return nil, s.Wrap("adopt", err)
	}
	entry := ops.JournalEntry{Actor: cmp.Or(req.Actor, "unknown"), Act: "adopt"}
	done := true
	var err error
	if home {
		done, err = s.adoptOwn(ctx, req, entry)
	} else {
		err = s.adoptMoved(ctx, req, entry)
	}
	if err != nil || !done {
		return nil, err
	}
	return &ops.Step{Version: db.Version, Name: "adopt", Took: time.Since(start)}, nil
}

// ownHistory is the state of an outbox of this server.
type ownHistory struct {
	epoch, stands int64
	broken        bool   // the sequence was set back, or a lift was interrupted
	relays        string // living relays
}

func (s *Migrator) ownHistory(ctx context.Context, q db.Querier) (h ownHistory, err error) {
	err = q.QueryRow(ctx, s.sql.adoptLook).Scan(&h.epoch, &h.stands, &h.broken, &h.relays)
	if err == nil && h.relays != "" {
		err = &store.UnusableError{
			What: fmt.Sprintf("relays are alive on schema %q: %s", s.Schema, h.relays),
			Fix:  "let them lift a sequence that was set back; to adopt the outbox, stop them first",
		}
	}
	return h, err
}

// adoptDue reports for a dry run whether adopt has work to do, as far as
// committed rows show it.
func (s *Migrator) adoptDue(ctx context.Context) (bool, error) {
	home := false
	if err := s.Pool.QueryRow(ctx, s.sql.home).Scan(&home); err != nil || !home {
		return true, err
	}
	h, err := s.ownHistory(ctx, s.Pool)
	return h.broken, err
}

func (s *Migrator) adoptOwn(ctx context.Context, req *ops.MigrateRequest, entry ops.JournalEntry) (done bool, err error) {
	h, err := s.ownHistory(ctx, s.Pool)
	if err == nil && !h.broken {
		// Uncommitted rows are judged when their transactions have ended.
		err = s.whenFree(ctx, req, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, s.sql.adoptLock); err != nil {
				return err
			}
			h, err = s.ownHistory(ctx, tx)
			return err
		})
	}
	if err != nil || !h.broken {
		return false, s.Wrap("adopt", err)
	}
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return false, s.Wrap("adopt", err)
	}
	defer conn.Release()
	if err := s.liftSequence(ctx, conn.Conn(), h.epoch, h.stands, 0); err != nil {
		return false, s.Wrap("adopt", err)
	}
	// setval is not transactional, so the journal entry has a separate transaction.
	_, err = s.journal.Write(ctx, conn, entry)
	return err == nil, s.Wrap("adopt", err)
}

func (s *Migrator) adoptMoved(ctx context.Context, req *ops.MigrateRequest, entry ops.JournalEntry) error {
	// Every transaction that has inserted must have ended.
	err := s.whenFree(ctx, req, func(tx pgx.Tx) error {
		home := false
		if err := tx.QueryRow(ctx, s.sql.home).Scan(&home); err != nil || home { // another process was faster
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.adoptLock); err != nil {
			return err
		}
		var floor int64
		if err := tx.QueryRow(ctx, s.sql.adoptFloor).Scan(&floor); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.adoptIDs); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.adoptLanes); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.adoptInfo, floor); err != nil {
			return err
		}
		if _, err := s.journal.Write(ctx, tx, entry); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql.adoptRelays)
		return err
	})
	return s.Wrap("adopt", err)
}
