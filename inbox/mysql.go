package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// MySQL has no INSERT that leaves a row alone and says so: how many rows ON DUPLICATE
// KEY reports depends on a flag of the connection, and IGNORE cuts what is too long. A
// plain INSERT fails, and the transaction continues.
const (
	mysqlClaim = `INSERT INTO {inbox} (consumer, message_id, topic, type, status, processed_at) VALUES ` + mysqlClaimHead + `$2, $3, $4` + mysqlClaimTail

	mysqlClaimHead = `($1, `
	mysqlClaimTail = `, 'a', {now})`

	// It fails on a row that an open transaction has inserted.
	mysqlFree = `SELECT count(*) FROM {inbox} WHERE consumer = $1 AND message_id = $2 FOR UPDATE NOWAIT`

	// The claim is there for as long as the transaction is.
	mysqlHeld = `SELECT count(*) FROM {inbox} WHERE consumer = $1 AND message_id = $2`

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
func (in *Inbox) claimTogether(ctx context.Context, tx outbox.Tx, l *claims) (fresh []bool, err error) {
	fresh = make([]bool, len(l.msgs))
	for order := l.order; len(order) > 0; {
		n := min(len(order), mysqlClaims)
		var text strings.Builder
		text.WriteString(mysqlClaim)
		args := make([]any, 0, 1+3*n)
		args = append(args, in.who.Consumer)
		for i, at := range order[:n] {
			if i > 0 {
				fmt.Fprintf(&text, ", %s$%d, $%d, $%d%s", mysqlClaimHead, 3*i+2, 3*i+3, 3*i+4, mysqlClaimTail)
			}
			m := &l.msgs[at]
			args = append(args, m.ID, inboxsql.Clean(m.Topic, postrider.MaxTopicLen), inboxsql.Clean(m.Type, postrider.MaxTypeLen))
		}
		_, err := in.lang.Statement(text.String()).Exec(ctx, tx, args...)
		switch {
		case err == nil:
			for _, at := range order[:n] {
				fresh[at] = true
			}
		case inboxsql.MySQLNumber(err) != inboxsql.MySQLDuplicate:
			return nil, Classify(fmt.Errorf("inbox %q: claim %d messages: %w", in.who.Consumer, len(l.msgs), err))
		default:
			for _, at := range order[:n] {
				if fresh[at], err = in.Claim(ctx, tx, l.msgs[at]); err != nil {
					return nil, err
				}
			}
		}
		order = order[n:]
	}
	return fresh, nil
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

// holds is nil while the claim of a message that was claimed in tx is there. Other
// databases refuse every statement of a transaction that has failed.
func (in *Inbox) holds(ctx context.Context, tx Conn, id string) error {
	if in.sql.held.None() {
		return nil
	}
	var n int
	if err := inboxsql.QueryRow(ctx, tx, in.sql.held, in.who.Consumer, id).Scan(&n); err != nil {
		return in.wrap("look for the claim of", id, err)
	}
	if n == 0 {
		return in.who.Wrap("process", id, ErrRolledBack)
	}
	return nil
}
