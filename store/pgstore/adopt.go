package pgstore

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
)

// adoptSQL holds the texts of adopt.
func (st *statements) adoptSQL(q func(string) string) {
	st.home = q(`SELECT i.cluster = (pg_control_system()).system_identifier FROM {{schema}}.outbox_info i`)
	// Whoever writes has ended, and what they wrote is visible: every row is at
	// or below the floor, and every later one above it.
	st.adoptLock = q(`LOCK TABLE {{schema}}.outbox IN SHARE ROW EXCLUSIVE MODE`)
	st.adoptFloor = q(`SELECT setval('{{schema}}.outbox_seq'::regclass, greatest(s.last_value, 1, ` + highest + `))
FROM {{schema}}.outbox_seq s`)
	// Logical replication carries rows and no sequences: ids begin anew behind
	// those that came along.
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
	// What was running on the other server is over. Its rows behind a cursor
	// are delivered like those of any transaction that ended; a set of which a
	// part was delivered starts anew only when there is another to join it.
	st.adoptLanes = q(`INSERT INTO {{schema}}.progress (pipe, lane, n, owner, pos, low, next_xid, draining, drain_seq, delivered)
SELECT c.pipe, c.lane, c.n + 1, '', c.pos, c.low, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
 nullif(c.inflight + c.draining, '{}'),
 CASE WHEN c.inflight + c.draining = '{}' THEN NULL WHEN c.inflight = '{}' THEN c.drain_seq ELSE c.low END, c.delivered
FROM {{schema}}.lane_cursor c ORDER BY c.pipe, c.lane`)
	st.adoptInfo = q(`UPDATE {{schema}}.outbox_info SET cluster = (pg_control_system()).system_identifier, floor = $1, reset_xid = 0,
 restore_epoch = restore_epoch + 1`)
	st.adoptRelays = q(`DELETE FROM {{schema}}.relay`)
}

// adopt makes the outbox one of this server. An outbox that came from another
// one is marked so that no transaction id of that one is looked for again; one
// of this server has its sequence lifted above every row and every cursor, and
// every reader looks again at what began after its last look.
func (s *Store) adopt(ctx context.Context, req *store.MigrateRequest) (*store.Step, error) {
	start := time.Now()
	home := false
	if err := s.pool.QueryRow(ctx, s.sql.home).Scan(&home); err != nil {
		return nil, s.wrap("adopt", err)
	}
	entry := store.JournalEntry{Actor: cmp.Or(req.Actor, "unknown"), Act: "adopt"}
	var err error
	if home {
		err = s.adoptOwn(ctx, entry)
	} else {
		err = s.adoptMoved(ctx, req, entry)
	}
	if err != nil {
		return nil, err
	}
	return &store.Step{Version: Version, Name: "adopt", Took: time.Since(start)}, nil
}

func (s *Store) adoptOwn(ctx context.Context, entry store.JournalEntry) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return s.wrap("adopt", err)
	}
	defer conn.Release()
	if err := s.liftSequence(ctx, conn.Conn(), 0); err != nil {
		return s.wrap("adopt", err)
	}
	// setval knows no transaction, so the entry has one of its own.
	_, err = conn.Exec(ctx, s.sql.audit, s.auditArgs(entry)...)
	return s.wrap("adopt", err)
}

func (s *Store) adoptMoved(ctx context.Context, req *store.MigrateRequest, entry store.JournalEntry) error {
	// Whoever has inserted must have ended.
	err := s.whenFree(ctx, req, func(tx pgx.Tx) error {
		home := false
		if err := tx.QueryRow(ctx, s.sql.home).Scan(&home); err != nil || home { // another was faster
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
		if _, err := s.audit(ctx, tx, entry); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql.adoptRelays)
		return err
	})
	return s.wrap("adopt", err)
}
