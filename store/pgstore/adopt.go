package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/xids"
)

// adoptSQL holds the texts of adopt.
func (st *statements) adoptSQL(q func(string) string) {
	st.home = q(`SELECT i.cluster = (pg_control_system()).system_identifier FROM {{schema}}.outbox_info i`)
	// Whoever writes has ended, and what they wrote is visible: every row is at
	// or below the floor, and every later one above it.
	st.adoptLock = q(`LOCK TABLE {{schema}}.outbox IN SHARE ROW EXCLUSIVE MODE`)
	st.adoptFloor = q(`SELECT setval('{{schema}}.outbox_seq'::regclass, greatest(s.last_value, 1, ` + db.Highest + `))
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
	st.liftSQL(q)
}

// liftSQL holds the texts that find a sequence that was set back, and lift it.
func (st *statements) liftSQL(q func(string) string) {
	// A row behind a cursor whose transaction began after the cursor's last look
	// drew its number from a sequence that was set back: the number was given out
	// when the cursor passed it. A finished lift accounts for ids below reset_xid.
	st.adoptLook = q(`WITH c AS MATERIALIZED (SELECT c.lane, c.pos, greatest(c.next_xid, i.reset_xid) AS next, i.floor
  FROM {{schema}}.lane_cursor c CROSS JOIN {{schema}}.outbox_info i WHERE c.pos > i.floor)
SELECT i.restore_epoch, {{stands}},
 i.reset_xid = 9223372036854775807 OR coalesce({{stands}} < greatest(` + db.Highest + `), false)
 OR EXISTS (SELECT 1 FROM {{schema}}.outbox o JOIN c ON c.lane = o.lane AND o.seq <= c.pos AND o.seq > c.floor AND o.xid >= c.next::text::xid8
   WHERE o.xid >= (SELECT min(next) FROM c)::text::xid8),
 coalesce((SELECT string_agg(DISTINCT coalesce(nullif(r.instance, ''), r.boot_id), ', ') FROM {{schema}}.relay r WHERE ` + db.Alive("r.") + `), '')
FROM {{schema}}.outbox_info i`)
	// Of several relays that found the same history broken, only one marks
	// it.
	st.liftMark = q(`UPDATE {{schema}}.outbox_info SET reset_xid = 9223372036854775807, floor = CASE WHEN $2::bigint < floor THEN 0 ELSE floor END,
 restore_epoch = restore_epoch + 1 WHERE restore_epoch = $1`)
	// Half of the room that is left in the partition, or to the end of the
	// sequence: the rest is for writers.
	st.liftRoom = q(`SELECT h.n, greatest(least($2::bigint,
 (least((SELECT min(l.above) FROM {{schema}}.partition_list() l WHERE l.above > h.n),
  (SELECT q.seqmax FROM pg_sequence q WHERE q.seqrelid = '{{schema}}.outbox_seq'::regclass)) - h.n) / 2), 1)
FROM (SELECT greatest($1::bigint, {{stands}}, ` + db.Highest + `) AS n OFFSET 0) h`)
	st.liftSet = q(`SELECT setval('{{schema}}.outbox_seq'::regclass, greatest($1::bigint, {{stands}}) + $2::bigint)`)
	st.liftDone = q(`UPDATE {{schema}}.outbox_info SET reset_xid = $1`)
}

// adopt makes the outbox one of this server. An outbox from another server is
// marked, so that no transaction id of the old server is looked for again. In an
// outbox of this server adopt lifts a sequence that was set back. It returns nil
// if there was nothing to do.
func (s *Store) adopt(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	home := false
	if err := s.box.Pool.QueryRow(ctx, s.sql.home).Scan(&home); err != nil {
		return nil, s.box.Wrap("adopt", err)
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

// ownHistory is what adopt finds in an outbox of this server.
type ownHistory struct {
	epoch, stands int64
	broken        bool   // the sequence was set back, or a lift broke off
	relays        string // that are alive
}

func (s *Store) ownHistory(ctx context.Context, q db.Querier) (h ownHistory, err error) {
	err = q.QueryRow(ctx, s.sql.adoptLook).Scan(&h.epoch, &h.stands, &h.broken, &h.relays)
	if err == nil && h.relays != "" {
		err = &store.UnusableError{
			What: fmt.Sprintf("relays are alive on schema %q: %s", s.opts.Schema, h.relays),
			Fix:  "let them lift a sequence that was set back; to adopt the outbox, stop them first",
		}
	}
	return h, err
}

// adoptDue reports for a dry run whether adopt has work to do, as far as
// committed rows show it.
func (s *Store) adoptDue(ctx context.Context) (bool, error) {
	home := false
	if err := s.box.Pool.QueryRow(ctx, s.sql.home).Scan(&home); err != nil || !home {
		return true, err
	}
	h, err := s.ownHistory(ctx, s.box.Pool)
	return h.broken, err
}

func (s *Store) adoptOwn(ctx context.Context, req *ops.MigrateRequest, entry ops.JournalEntry) (done bool, err error) {
	h, err := s.ownHistory(ctx, s.box.Pool)
	if err == nil && !h.broken {
		// Rows that nobody can see yet are judged when their transactions have ended.
		err = s.whenFree(ctx, req, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, s.sql.adoptLock); err != nil {
				return err
			}
			h, err = s.ownHistory(ctx, tx)
			return err
		})
	}
	if err != nil || !h.broken {
		return false, s.box.Wrap("adopt", err)
	}
	conn, err := s.box.Pool.Acquire(ctx)
	if err != nil {
		return false, s.box.Wrap("adopt", err)
	}
	defer conn.Release()
	if err := s.liftSequence(ctx, conn.Conn(), h.epoch, h.stands, 0); err != nil {
		return false, s.box.Wrap("adopt", err)
	}
	// setval knows no transaction, so the entry has one of its own.
	_, err = conn.Exec(ctx, s.sql.audit, s.auditArgs(entry)...)
	return err == nil, s.box.Wrap("adopt", err)
}

// repairSequence lifts a sequence that was set back below a cursor, as a read with
// this identity found it, and answers with ErrIdentity: what is held in memory
// belongs to another history.
func (s *Store) repairSequence(ctx context.Context, conn *pgx.Conn, identity string, stands, top int64) error {
	epoch, err := epochOf(identity)
	if err != nil {
		return err
	}
	if err := s.liftSequence(ctx, conn, epoch, stands, top); err != nil {
		return err
	}
	return fmt.Errorf("%w: the sequence had been set back below %d and was lifted again", store.ErrIdentity, top)
}

// epochOf is the restore epoch of an identity.
func epochOf(identity string) (int64, error) {
	parts := strings.Split(identity, "/")
	if len(parts) < 3 {
		return 0, fmt.Errorf("identity %.60q has no restore epoch", identity)
	}
	return strconv.ParseInt(parts[2], 10, 64)
}

// liftAhead is how far above every number a sequence is lifted. No lock keeps
// nextval out between the read of the sequence and the setval that follows in the
// same expression. Only more numbers than these, drawn in that time, would set
// the sequence back. A lock on the table would wait for the oldest writer, and
// every younger one behind it.
const liftAhead = 1_000_000_000

// liftSequence lifts the sequence above top, every row and every cursor, and makes
// every reader look again at transactions that began after its last look. It does
// nothing if the history of that epoch has ended: another caller lifts the
// sequence.
func (s *Store) liftSequence(ctx context.Context, conn *pgx.Conn, epoch, stands, top int64) error {
	// Marked first: if we die in between, nothing is taken for settled.
	tag, err := conn.Exec(ctx, s.sql.liftMark, epoch, stands)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// Partitions move the sequence on under the lock of migrations.
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, strconv.FormatInt(s.opts.LockWait.Milliseconds(), 10)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, db.MigrateLock+s.opts.Schema); err != nil {
			return err
		}
		var high, ahead int64
		if err := tx.QueryRow(ctx, s.sql.liftRoom, top, int64(liftAhead)).Scan(&high, &ahead); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql.liftSet, high, ahead)
		return err
	})
	if err != nil {
		return err
	}
	// setval is not transactional: a transaction that drew a low number has an id
	// below this. In a transaction with an id of its own age() would return that
	// id instead of the next.
	var age int64
	var snapshot string
	if err := conn.QueryRow(ctx, xids.LookSQL).Scan(&age, &snapshot); err != nil {
		return err
	}
	k, err := xids.NewLook(snapshot, age)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, s.sql.liftDone, int64(k.Next))
	return err
}

func (s *Store) adoptMoved(ctx context.Context, req *ops.MigrateRequest, entry ops.JournalEntry) error {
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
	return s.box.Wrap("adopt", err)
}
