// Package sessions looks at the statements and transactions of all sessions of a server.
package sessions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// TrxNow is the server's time in the zone of its process, as INNODB_TRX tells times.
const TrxNow = `CONVERT_TZ(NOW(), @@SESSION.time_zone, 'SYSTEM')`

// Session is a statement or a transaction of another session, as an error names it. The text of a statement
// is left out: it can hold payloads.
type Session struct {
	ID       int64 // of the connection; 0 for a prepared XA transaction, which has none
	user     string
	database string
	state    string
	Seconds  int64 // since it began, rounded by the server
}

func (s Session) String() string {
	text := fmt.Sprintf("connection %d (%s", s.ID, s.user)
	if s.database != "" {
		text += ", database " + s.database
	}
	if s.state != "" {
		text += ", state " + s.state
	}
	return text + ")"
}

// Age returns how long ago it began, to the second.
func (s Session) Age() time.Duration { return time.Duration(s.Seconds) * time.Second }

// Oldest returns the oldest statement of another session; its seconds are -1 when none runs. Sessions that
// sleep, and the server's own threads, draw no numbers.
func Oldest(ctx context.Context, q db.Querier) (Session, error) {
	found := Session{Seconds: -1}
	err := q.QueryRowContext(ctx, `SELECT ID, CONCAT(USER, '@', HOST), COALESCE(DB, ''), COALESCE(STATE, ''), GREATEST(TIME, 0) AS seconds FROM information_schema.PROCESSLIST
		WHERE COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID') AND USER NOT IN ('system user', 'event_scheduler') AND ID <> CONNECTION_ID()
		ORDER BY seconds DESC, ID LIMIT 1`).Scan(&found.ID, &found.user, &found.database, &found.state, &found.Seconds)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return found, err
}

// writing returns the oldest transaction of another session that has written; without one its seconds are -1.
func writing(ctx context.Context, q db.Querier) (Session, error) {
	found := Session{Seconds: -1}
	err := q.QueryRowContext(ctx, `SELECT t.trx_mysql_thread_id, COALESCE(CONCAT(l.USER, '@', l.HOST), ''), COALESCE(l.DB, ''), COALESCE(l.STATE, ''),
		GREATEST(TIMESTAMPDIFF(SECOND, t.trx_started, `+TrxNow+`), 0) AS seconds
		FROM information_schema.INNODB_TRX t LEFT JOIN information_schema.PROCESSLIST l ON l.ID = t.trx_mysql_thread_id
		WHERE t.trx_rows_modified > 0 AND t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY seconds DESC, t.trx_mysql_thread_id LIMIT 1`).
		Scan(&found.ID, &found.user, &found.database, &found.state, &found.Seconds)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return found, err
}

// TooMany is the error of a read that can take nothing, since holes are too many. It says for what they wait: numbers are given up when every statement
// from before has ended, and numbers of a transaction that is open are kept. Those that are younger than soon keep no gap open for long.
func TooMany(ctx context.Context, q db.Querier, open holes.Set, soon time.Duration) error {
	what := fmt.Sprintf("messages are held up behind %d gaps in the outbox's numbers, the first at %d: ", len(open), open[0].First)
	err := &store.UnusableError{Passing: true}
	if refusal := new(store.UnusableError); errors.As(SeesAll(ctx, q), &refusal) {
		err.What = what + "an old statement or transaction keeps them open, and this user lacks the privilege PROCESS to see which"
		err.Fix = "find the oldest statement in SHOW FULL PROCESSLIST as a user with PROCESS, and the prepared transaction in XA RECOVER, and end it"
		return err
	}
	statement, failed := Oldest(ctx, q)
	if failed != nil {
		return fmt.Errorf("find the oldest statement: %w", failed)
	}
	transaction, failed := writing(ctx, q)
	if failed != nil {
		return fmt.Errorf("find the oldest transaction: %w", failed)
	}
	switch {
	case statement.Age() >= soon:
		err.What = what + fmt.Sprintf("a statement of %s runs for %s", statement, plural.Of(statement.Seconds, "second"))
		err.Fix = fmt.Sprintf("wait for its end, or KILL QUERY %d", statement.ID)
	case transaction.Age() >= soon && transaction.ID == 0:
		err.What = what + fmt.Sprintf("a prepared XA transaction, which has no connection, is open for %s", plural.Of(transaction.Seconds, "second"))
		err.Fix = "find it in XA RECOVER, then XA COMMIT or XA ROLLBACK"
	case transaction.Age() >= soon:
		err.What = what + fmt.Sprintf("a transaction of %s is open for %s", transaction, plural.Of(transaction.Seconds, "second"))
		err.Fix = fmt.Sprintf("wait for its end, or KILL %d", transaction.ID)
	default:
		err.What = what + "no statement and no transaction is old, so rollbacks leave gaps faster than they can be given up"
		err.Fix = "have writers roll back less: relays follow some 1,300 gaps a second"
	}
	return err
}

// SeesAll reports whether the user may see the statements of all sessions: without the
// privilege the server shows only the user's own, without an error.
func SeesAll(ctx context.Context, q db.Querier) error {
	// The table needs PROCESS, of the user or of a role that is active. Without it, it is empty
	// on MariaDB.
	var may bool
	err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.INNODB_CMP)`).Scan(&may)
	if may || err != nil && db.Code(err) != db.ErrNeedsPrivilege {
		return err
	}
	var user string
	if err := q.QueryRowContext(ctx, `SELECT CURRENT_USER()`).Scan(&user); err != nil {
		return err
	}
	name, host, _ := strings.Cut(user, "@")
	return &store.UnusableError{
		What: "user " + user + " lacks the privilege PROCESS, without which running statements of other sessions are invisible",
		Fix:  fmt.Sprintf("GRANT PROCESS ON *.* TO '%s'@'%s'", name, host),
	}
}

// Settings is the SQL of what Suits examines.
const Settings = `CONCAT_WS(' ', IF(@@SESSION.autocommit, 'ON', 'OFF'), @@SESSION.character_set_client, @@SESSION.character_set_connection, @@SESSION.character_set_results)`

// Suits fails where a session commits nothing by itself, so that a settlement of one statement would be lost, or where
// it changes texts. The session is taken for one of its pool.
func Suits(settings string) error {
	const suitable = "ON utf8mb4 utf8mb4 utf8mb4"
	if settings == suitable {
		return nil
	}
	return &store.UnusableError{
		What: fmt.Sprintf("the pool's sessions have unsuitable settings: autocommit, character_set_client, character_set_connection and character_set_results must be %q (found %q)", suitable, settings),
		Fix:  "open the pool with mysqlstore.OpenDB, or change its settings",
	}
}
