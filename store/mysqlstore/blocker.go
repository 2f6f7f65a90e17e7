package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// session is a statement or a transaction of another session, as an error names it. The text of a statement
// is left out: it can hold payloads.
type session struct {
	id       int64 // of the connection; 0 for a prepared XA transaction, which has none
	user     string
	database string
	state    string
	seconds  int64 // since it began, rounded by the server
}

func (s session) String() string {
	text := fmt.Sprintf("connection %d (%s", s.id, s.user)
	if s.database != "" {
		text += ", database " + s.database
	}
	if s.state != "" {
		text += ", state " + s.state
	}
	return text + ")"
}

func (s session) age() time.Duration { return time.Duration(s.seconds) * time.Second }

// oldest returns the oldest statement of another session; its seconds are -1 when none runs. Sessions that
// sleep, and the server's own threads, draw no numbers.
func (s *Store) oldest(ctx context.Context, q db.Querier) (session, error) {
	found := session{seconds: -1}
	err := q.QueryRowContext(ctx, `SELECT ID, CONCAT(USER, '@', HOST), COALESCE(DB, ''), COALESCE(STATE, ''), GREATEST(TIME, 0) AS seconds FROM information_schema.PROCESSLIST
		WHERE COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID') AND USER NOT IN ('system user', 'event_scheduler') AND ID <> CONNECTION_ID()
		ORDER BY seconds DESC, ID LIMIT 1`).Scan(&found.id, &found.user, &found.database, &found.state, &found.seconds)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return found, err
}

// writing returns the oldest transaction of another session that has written; its seconds are -1 when there is none.
func (s *Store) writing(ctx context.Context, q db.Querier) (session, error) {
	found := session{seconds: -1}
	err := q.QueryRowContext(ctx, `SELECT t.trx_mysql_thread_id, COALESCE(CONCAT(l.USER, '@', l.HOST), ''), COALESCE(l.DB, ''), COALESCE(l.STATE, ''),
		GREATEST(TIMESTAMPDIFF(SECOND, t.trx_started, `+trxNow+`), 0) AS seconds
		FROM information_schema.INNODB_TRX t LEFT JOIN information_schema.PROCESSLIST l ON l.ID = t.trx_mysql_thread_id
		WHERE t.trx_rows_modified > 0 AND t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY seconds DESC, t.trx_mysql_thread_id LIMIT 1`).
		Scan(&found.id, &found.user, &found.database, &found.state, &found.seconds)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return found, err
}

// tooMany says that messages wait since holes are too many, and for what: numbers are given up when every statement
// from before has ended, and numbers of a transaction that is open are kept.
func (s *Store) tooMany(ctx context.Context, q db.Querier, open holes.Set) error {
	what := fmt.Sprintf("messages are held up behind %d gaps in the outbox's numbers, the first at %d: ", len(open), open[0].First)
	err := &store.UnusableError{Passing: true}
	if refusal := new(store.UnusableError); errors.As(s.seesAll(ctx, q), &refusal) {
		err.What = what + "an old statement or transaction keeps them open, and this user lacks the privilege PROCESS to see which"
		err.Fix = "find the oldest statement in SHOW FULL PROCESSLIST as a user with PROCESS, and the prepared transaction in XA RECOVER, and end it"
		return err
	}
	statement, failed := s.oldest(ctx, q)
	if failed != nil {
		return s.box.Wrap("find the oldest statement", failed)
	}
	transaction, failed := s.writing(ctx, q)
	if failed != nil {
		return s.box.Wrap("find the oldest transaction", failed)
	}
	const soon = patience + slack // younger ones keep no gap open for long
	switch {
	case statement.age() >= soon:
		err.What = what + fmt.Sprintf("a statement of %s runs for %s", statement, plural.Of(statement.seconds, "second"))
		err.Fix = fmt.Sprintf("wait for its end, or KILL QUERY %d", statement.id)
	case transaction.age() >= soon && transaction.id == 0:
		err.What = what + fmt.Sprintf("a prepared XA transaction, which has no connection, is open for %s", plural.Of(transaction.seconds, "second"))
		err.Fix = "find it in XA RECOVER, then XA COMMIT or XA ROLLBACK"
	case transaction.age() >= soon:
		err.What = what + fmt.Sprintf("a transaction of %s is open for %s", transaction, plural.Of(transaction.seconds, "second"))
		err.Fix = fmt.Sprintf("wait for its end, or KILL %d", transaction.id)
	default:
		err.What = what + "no statement and no transaction is old, so rollbacks leave gaps faster than they can be given up"
		err.Fix = "have writers roll back less: relays follow some 1,300 gaps a second"
	}
	return err
}
