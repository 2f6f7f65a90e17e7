package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// MySQL has no INSERT that leaves a row alone and says so: how many rows ON DUPLICATE
// KEY reports depends on a flag of the connection, and IGNORE cuts what is too long. A
// plain INSERT fails, and the transaction continues.
const (
	mysqlClaim     = mysqlClaimHead + `($1, $2, $3, $4, 'a', {now})`
	mysqlClaimHead = `INSERT INTO {inbox} (consumer, message_id, topic, type, status, processed_at) VALUES `

	mysqlClock = `SELECT {now}`

	// It fails on a row that an open transaction has inserted.
	mysqlFree = `SELECT count(*) FROM {inbox} WHERE consumer = $1 AND message_id = $2 FOR UPDATE NOWAIT`

	// The claim is there for as long as the transaction is. $3 is not 0 for a batch: a claim
	// that another process has made since proves nothing of the other messages.
	mysqlHeld = `SELECT count(*) FROM {inbox} WHERE consumer = $1 AND message_id = $2 AND $3 IN (0, processed_at)`

	// The snapshot of a transaction that has read before its claim may be older than the
	// claim that it met.
	mysqlShared = ` LOCK IN SHARE MODE`

	// MySQL has no LIMIT in a subquery of IN, and no other reading of a table that it
	// deletes from.
	mysqlPrune = `DELETE FROM {inbox} WHERE consumer = $1 AND processed_at < {plus}$2{plusend}
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = {inbox}.message_id AND a.state = 'dead')
AND NOT EXISTS (SELECT 1 FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id = {inbox}.message_id)
ORDER BY processed_at LIMIT $3`
)

// mysqlClaims is how many messages one statement claims.
const mysqlClaims = 500

// claimTogether claims messages in one statement, as long as none of them was claimed
// before: a row that is there fails the whole statement, and they are claimed one by one.
// All claims have the one time at, in microseconds since 1970: up to a second before the
// server's clock, at random, since two processes may ask in the same microsecond.
func (in *Inbox) claimTogether(ctx context.Context, tx Conn, l *claims) (fresh []bool, at int64, err error) {
	if err := inboxsql.QueryRow(ctx, tx, in.sql.clock).Scan(&at); err != nil {
		return nil, 0, Classify(fmt.Errorf("inbox %q: claim %d messages: %w", in.who.Consumer, len(l.msgs), err))
	}
	at -= rand.Int64N(1 << 20)
	fresh = make([]bool, len(l.msgs))
	for order := l.order; len(order) > 0; {
		n := min(len(order), mysqlClaims)
		err := in.claimAt(ctx, tx, at, l.msgs, order[:n])
		switch {
		case err == nil:
			for _, i := range order[:n] {
				fresh[i] = true
			}
		case inboxsql.MySQLNumber(err) != inboxsql.MySQLDuplicate:
			return nil, 0, Classify(fmt.Errorf("inbox %q: claim %d messages: %w", in.who.Consumer, len(l.msgs), err))
		case n == 1:
		default: // the statement is undone, and the transaction lives on
			for i := range n {
				err := in.claimAt(ctx, tx, at, l.msgs, order[i:i+1])
				if fresh[order[i]] = err == nil; err != nil && inboxsql.MySQLNumber(err) != inboxsql.MySQLDuplicate {
					return nil, 0, in.wrap("claim", l.msgs[order[i]].ID, err)
				}
			}
		}
		order = order[n:]
	}
	return fresh, at, nil
}

// claimAt claims the messages of these indexes in one statement.
func (in *Inbox) claimAt(ctx context.Context, tx outbox.Tx, at int64, msgs []postrider.Message, order []int) error {
	var text strings.Builder
	text.WriteString(mysqlClaimHead)
	args := make([]any, 0, 2+3*len(order))
	args = append(args, in.who.Consumer, at)
	for i, one := range order {
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "($1, $%d, $%d, $%d, 'a', $2)", 3*i+3, 3*i+4, 3*i+5)
		m := &msgs[one]
		args = append(args, m.ID, inboxsql.Clean(m.Topic, postrider.MaxTopicLen), inboxsql.Clean(m.Type, postrider.MaxTypeLen))
	}
	_, err := in.lang.Statement(text.String()).Exec(ctx, tx, args...)
	return err
}

// isFree reports whether nobody has claimed the message, or that an open transaction has.
func (in *Inbox) isFree(ctx context.Context, tx Conn, m *postrider.Message) (free, busy bool, err error) {
	var n int
	err = inboxsql.QueryRow(ctx, tx, in.sql.free, in.who.Consumer, m.ID).Scan(&n)
	if inboxsql.MySQLBusy(err) {
		return false, true, nil
	}
	if err != nil {
		return false, false, in.wrap("claim", m.ID, err)
	}
	return n == 0, false, nil
}

// ErrRolledBack is matched when the server ended a transaction inside the function that
// was to have its effect there, and the function did not return the error: MySQL rolls
// back all of a transaction for a deadlock, and runs what follows outside of any.
var ErrRolledBack = errors.New("the server has ended the transaction inside the handler, which did not return the error")

// holds is nil while the claim of a message that was claimed in tx is there; at is the time
// of a batch's claims, 0 for a message that is alone: whoever has claimed it has processed
// it. Other databases refuse every statement of a transaction that has failed.
func (in *Inbox) holds(ctx context.Context, tx Conn, id string, at int64) error {
	if in.sql.held.None() {
		return nil
	}
	var n int
	if err := inboxsql.QueryRow(ctx, tx, in.sql.held, in.who.Consumer, id, at).Scan(&n); err != nil {
		return in.wrap("look for the claim of", id, err)
	}
	if n == 0 {
		return in.who.Wrap("process", id, ErrRolledBack)
	}
	return nil
}
