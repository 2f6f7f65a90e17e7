package migrate

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// liftSQL returns the statements that find a sequence that was set back, and lift it.
func (st *texts) liftSQL(q func(string) string) {
	// A row behind a cursor whose transaction began after the cursor's last read drew its
	// number from a sequence that was set back: the number had been drawn when the cursor
	// passed it. A finished lift accounts for ids below reset_xid.
	st.adoptLook = q(`WITH c AS MATERIALIZED (SELECT c.lane, c.pos, greatest(c.next_xid, i.reset_xid) AS next, i.floor
  FROM {{schema}}.lane_cursor c CROSS JOIN {{schema}}.outbox_info i WHERE c.pos > i.floor)
SELECT i.restore_epoch, {{stands}},
 i.reset_xid = 9223372036854775807 OR coalesce({{stands}} < greatest(` + db.Highest + `), false)
 OR EXISTS (SELECT 1 FROM {{schema}}.outbox o JOIN c ON c.lane = o.lane AND o.seq <= c.pos AND o.seq > c.floor AND o.xid >= c.next::text::xid8
   WHERE o.xid >= (SELECT min(next) FROM c)::text::xid8),
 coalesce((SELECT string_agg(DISTINCT coalesce(nullif(r.instance, ''), r.boot_id), ', ') FROM {{schema}}.relay r WHERE ` + db.Alive("r.") + `), '')
FROM {{schema}}.outbox_info i`)
	// If several relays find the same history broken, only one marks it.
	st.liftMark = q(`UPDATE {{schema}}.outbox_info SET reset_xid = 9223372036854775807, floor = CASE WHEN $2::bigint < floor THEN 0 ELSE floor END,
 restore_epoch = restore_epoch + 1 WHERE restore_epoch = $1`)
	// Half of the room that is left in the partition, or up to the end of the sequence.
	// The other half is for writers.
	st.liftRoom = q(`SELECT h.n, greatest(least($2::bigint,
 (least((SELECT min(l.above) FROM {{schema}}.partition_list() l WHERE l.above > h.n),
  (SELECT q.seqmax FROM pg_sequence q WHERE q.seqrelid = '{{schema}}.outbox_seq'::regclass)) - h.n) / 2), 1)
FROM (SELECT greatest($1::bigint, {{stands}}, ` + db.Highest + `) AS n OFFSET 0) h`)
	st.liftSet = q(`SELECT setval('{{schema}}.outbox_seq'::regclass, greatest($1::bigint, {{stands}}) + $2::bigint)`)
	st.liftDone = q(`UPDATE {{schema}}.outbox_info SET reset_xid = $1`)
}

// repairSequence lifts a sequence that a read with this identity found below a cursor, and
// returns ErrIdentity: state in memory belongs to another history.
func (s *Migrator) RepairSequence(ctx context.Context, conn *pgx.Conn, identity string, stands, top int64) error {
	epoch, err := epochOf(identity)
	if err != nil {
		return err
	}
	if err := s.liftSequence(ctx, conn, epoch, stands, top); err != nil {
		return err
	}
	return fmt.Errorf("%w: the sequence had been set back below %d and was lifted again", store.ErrIdentity, top)
}

// epochOf returns the restore epoch of an identity.
func epochOf(identity string) (int64, error) {
	parts := strings.Split(identity, "/")
	if len(parts) < 3 {
		return 0, fmt.Errorf("identity %.60q has no restore epoch", identity)
	}
	return strconv.ParseInt(parts[2], 10, 64)
}

// liftAhead is the distance by which a sequence is lifted above every number. No lock keeps
// nextval out between the read of the sequence and the setval in the same expression. Only if
// writers drew more numbers than these in that time would setval set the sequence back. A lock
// on the table would wait for the oldest writer, and all younger writers for the lock.
const liftAhead = 1_000_000_000

// liftSequence lifts the sequence above top, every row and every cursor, and makes every
// reader check transactions that began after its last read. It does nothing if the history of
// that epoch has ended: another caller lifts the sequence.
func (s *Migrator) liftSequence(ctx context.Context, conn *pgx.Conn, epoch, stands, top int64) error {
	// Mark first: after a crash in between no row counts as settled.
	tag, err := conn.Exec(ctx, s.sql.liftMark, epoch, stands)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// Partitions move the sequence on under the lock of migrations.
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, strconv.FormatInt(s.LockWait.Milliseconds(), 10)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, db.MigrateLock+s.Schema); err != nil {
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
	// setval is not transactional: a transaction that drew a low number has an id below this
	// one. In a transaction with an id age() would return that id instead of the next.
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
