package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// Strict manages the topics whose keys the outbox numbers. It is safe for concurrent use.
type Strict struct {
	*db.Outbox
	journal *journal.Journal
	sql     strictTexts
}

// strictTexts are the statements of one schema, made once.
type strictTexts struct {
	strictTopics string
	strictSeed   string
	strictLock   string
	strictAdd    string
	strictRemove string
	strictApply  string
	strictBusy   string
}

// NewStrict returns the strict topics of an outbox. It does no I/O.
func NewStrict(o *db.Outbox) *Strict {
	s := &Strict{Outbox: o, journal: journal.New(o)}
	s.sql.strictSQL(o.Render)
	return s
}

// Writers queue behind a lock request that waits for one of them. Each attempt is short, and
// writers proceed in between.
const (
	strictTries = 5
	strictWait  = "1s"
	strictPause = 200 * time.Millisecond
)

// StrictTopics lists the strict topics by name.
func (s *Strict) StrictTopics(ctx context.Context) (topics []ops.StrictTopic, err error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	err = s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var t ops.StrictTopic
			if err := rows.Scan(&t.Topic, &t.Since); err != nil {
				return err
			}
			t.Since = t.Since.UTC()
			topics = append(topics, t)
		}
		return rows.Err()
	}, s.sql.strictTopics)
	if err != nil {
		return nil, s.Wrap("list the strict topics", err)
	}
	return topics, nil
}

// SetStrict makes a topic strict, or plain again. It needs the role that owns
// the outbox, as migrations do.
func (s *Strict) SetStrict(ctx context.Context, req ops.StrictRequest) (changed bool, err error) {
	if s.Bad != nil {
		return false, s.Bad
	}
	if err := (&postrider.Message{Topic: req.Topic}).Validate(); err != nil {
		return false, fmt.Errorf("strict: %w", err)
	}
	topics, err := s.StrictTopics(ctx)
	if err != nil {
		return false, err
	}
	for _, t := range topics {
		if t.Topic == req.Topic && req.Strict {
			return false, nil
		}
	}
	// Old rows are counted while writers continue. Rows added in the meantime belong to
	// transactions from xmin on and are counted under the lock.
	var xmin string
	if req.Strict {
		if xmin, err = s.seedVersions(ctx, req.Topic); err != nil {
			return false, s.Wrap("strict: find the present versions", err)
		}
	}
	for n := 1; ; n++ {
		if changed, err = s.setStrict(ctx, req, xmin); !db.Blocked(err) {
			break
		}
		if n == strictTries {
			return false, s.busy(ctx, err)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(strictPause):
		}
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return false, &store.UnusableError{
			What: "strict: " + pg.Message, Fix: "use the role that owns the outbox and migrates it", Err: err,
		}
	}
	return changed, s.Wrap("strict", err)
}

// seedVersions records the versions of the topic's keys in existing rows, and returns the
// oldest transaction whose rows it may have missed.
func (s *Strict) seedVersions(ctx context.Context, topic string) (xmin string, err error) {
	err = pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, db.NoRowSecurity); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text`).Scan(&xmin); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, s.sql.strictSeed, topic, "3")
		return err
	})
	return xmin, err
}

// setStrict tries once. The lock allows reads and waits until no insert is unfinished: otherwise
// a message without a version could commit after the first message with one.
func (s *Strict) setStrict(ctx context.Context, req ops.StrictRequest, xmin string) (changed bool, err error) {
	err = s.LookingAnew(ctx, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(db.NoRowSecurity)
		b.Queue(`SELECT set_config('lock_timeout', $1, true)`, strictWait)
		b.Queue(`SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, db.MigrateLock+s.Schema)
		if req.Strict {
			b.Queue(s.sql.strictLock)
			b.Queue(s.sql.strictSeed, req.Topic, xmin)
		}
		statement := s.sql.strictRemove
		if req.Strict {
			statement = s.sql.strictAdd
		}
		b.Queue(statement, req.Topic).Exec(func(tag pgconn.CommandTag) error {
			changed = tag.RowsAffected() > 0
			return nil
		})
		b.Queue(s.sql.strictApply)
		if err := tx.SendBatch(ctx, b).Close(); err != nil || !changed {
			return err
		}
		act := "strict remove"
		if req.Strict {
			act = "strict add"
		}
		target, err := json.Marshal(map[string]string{"topic": req.Topic})
		if err != nil {
			return err
		}
		_, err = s.journal.Write(ctx, tx, ops.JournalEntry{Actor: req.Actor, Act: act, Target: target, Reason: req.Reason})
		return err
	})
	return changed, err
}

// busy returns an error with the oldest blocking transaction.
func (s *Strict) busy(ctx context.Context, cause error) error {
	e := &ops.BusyError{Table: s.Schema + ".outbox", Err: cause}
	var age float64
	err := s.Pool.QueryRow(ctx, s.sql.strictBusy).Scan(&e.PID, &e.Application, &age)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return errors.Join(e, err)
	}
	e.Age = db.Seconds(age)
	return e
}

func (st *strictTexts) strictSQL(q func(string) string) {
	st.strictTopics = q(`SELECT topic, since FROM {{schema}}.strict_topic ORDER BY topic`)
	// Existing keys of the topic, and rows of transactions from $2 on.
	st.strictSeed = q(`INSERT INTO {{schema}}.key_version AS v (topic, key, version, seq)
SELECT $1, m.key, max(m.version), max(m.seq) FROM (
  SELECT o.key, o.version, o.seq FROM {{schema}}.outbox o WHERE o.topic = $1 AND o.key <> '' AND o.version > 0 AND o.xid >= $2::text::xid8
  UNION ALL SELECT k.key, k.version, k.seq FROM {{schema}}.parked k WHERE k.topic = $1 AND k.key <> '' AND k.version > 0) m
GROUP BY m.key ORDER BY m.key
ON CONFLICT (topic, key) DO UPDATE SET version = greatest(v.version, excluded.version), seq = greatest(v.seq, excluded.seq)
WHERE v.version < excluded.version`)
	st.strictLock = q(`LOCK TABLE {{schema}}.outbox IN SHARE ROW EXCLUSIVE MODE`)
	st.strictAdd = q(`INSERT INTO {{schema}}.strict_topic (topic) VALUES ($1) ON CONFLICT DO NOTHING`)
	st.strictRemove = q(`DELETE FROM {{schema}}.strict_topic WHERE topic = $1`)
	st.strictApply = q(`SELECT {{schema}}.strict_apply()`)
	st.strictBusy = q(`SELECT coalesce(l.pid, 0), coalesce(a.application_name, ''), coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.relation = '{{schema}}.outbox'::regclass AND l.granted AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock')
ORDER BY a.xact_start NULLS FIRST LIMIT 1`)
}
