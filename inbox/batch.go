package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// ClaimBatch is [Inbox.Claim] for many messages, on PostgreSQL and MySQL in one statement.
// fresh has an entry per message; of two messages with the same id only the first can be fresh.
func (in *Inbox) ClaimBatch(ctx context.Context, tx Conn, msgs []postrider.Message) (fresh []bool, err error) {
	fresh, _, err = in.claimBatch(ctx, tx, msgs)
	return fresh, err
}

// claimBatch returns also the time of the claims, 0 where holds does not ask for it.
func (in *Inbox) claimBatch(ctx context.Context, tx Conn, msgs []postrider.Message) (fresh []bool, at int64, err error) {
	for i := range msgs {
		if err := in.who.Usable(msgs[i].ID); err != nil {
			return nil, 0, err
		}
	}
	if err := outbox.CheckTx(tx); err != nil {
		return nil, 0, err
	}
	l := listClaims(msgs)
	switch {
	case in.lang.MySQL && len(l.order) > 1:
		return in.claimTogether(ctx, tx, l)
	case in.sql.claimMany.None() || len(l.order) < 2 || l.unfit:
		fresh, err = in.claimEach(ctx, tx, l)
		return fresh, 0, err
	}
	var (
		n   int
		ids string
	)
	row := inboxsql.QueryRow(ctx, tx, in.sql.claimMany, in.who.Consumer, l.ids.String(), l.topics.String(), l.types.String(), len(l.order))
	if err := row.Scan(&n, &ids); err != nil {
		return nil, 0, Classify(fmt.Errorf("inbox %q: claim %d messages: %w", in.who.Consumer, len(msgs), err))
	}
	return l.fresh(n, ids), 0, nil
}

func (in *Inbox) claimEach(ctx context.Context, tx Conn, l *claims) (fresh []bool, err error) {
	fresh = make([]bool, len(l.msgs))
	for _, i := range l.order {
		if fresh[i], err = in.Claim(ctx, tx, l.msgs[i]); err != nil {
			return nil, err
		}
	}
	return fresh, nil
}

// claims has the messages of a batch as parameters of the statement: each id once,
// with topic and type of its first message, in the order of the ids.
type claims struct {
	msgs               []postrider.Message
	order              []int // indexes in msgs
	ids, topics, types strings.Builder
	unfit              bool // a value contains a listSep
}

// listSep is chr(31), the unit separator of ASCII. A list cannot have an element that
// contains one.
const listSep = "\x1f"

func listClaims(msgs []postrider.Message) *claims {
	l := &claims{msgs: msgs, order: make([]int, len(msgs))}
	for i := range msgs {
		l.order[i] = i
	}
	slices.SortStableFunc(l.order, func(a, b int) int { return strings.Compare(msgs[a].ID, msgs[b].ID) })
	l.order = slices.CompactFunc(l.order, func(a, b int) bool { return msgs[a].ID == msgs[b].ID })
	for n, i := range l.order {
		m := &msgs[i]
		l.add(n, &l.ids, m.ID)
		l.add(n, &l.topics, inboxsql.Clean(m.Topic, postrider.MaxTopicLen))
		l.add(n, &l.types, inboxsql.Clean(m.Type, postrider.MaxTypeLen))
	}
	return l
}

func (l *claims) add(n int, to *strings.Builder, text string) {
	if n > 0 {
		to.WriteString(listSep)
	}
	to.WriteString(text)
	l.unfit = l.unfit || strings.Contains(text, listSep)
}

// fresh reports which messages were claimed: n of the ids, listed in ids
// unless n is 0 or all.
func (l *claims) fresh(n int, ids string) []bool {
	fresh := make([]bool, len(l.msgs))
	var claimed map[string]bool
	if 0 < n && n < len(l.order) {
		claimed = make(map[string]bool, n)
		for id := range strings.SplitSeq(ids, listSep) {
			claimed[id] = true
		}
	}
	for _, i := range l.order {
		fresh[i] = n == len(l.order) || claimed[l.msgs[i].ID]
	}
	return fresh
}

// OnceBatch is [Inbox.Once] for many messages in one transaction. fn gets the messages
// that were not claimed before, in their order, and is not called if there are
// none. After an error nothing of the batch has happened: run its messages
// again one by one with Once, so that only the failing message is left.
func (in *Inbox) OnceBatch(ctx context.Context, db Beginner, msgs []postrider.Message, fn func(tx *sql.Tx, fresh []postrider.Message) error) error {
	if len(msgs) == 0 {
		return nil
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return in.wrap("begin for", msgs[0].ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // as in Once
	fresh, at, err := in.fresh(ctx, SQL(tx), msgs)
	if err != nil {
		return err
	}
	if len(fresh) > 0 {
		if err := fn(tx, fresh); err != nil {
			return Classify(err)
		}
		if err := in.holds(ctx, SQL(tx), fresh[0].ID, at); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return in.wrap("commit a batch with", msgs[0].ID, err)
	}
	return nil
}

// OnceBatchPgx is [Inbox.OnceBatch] for pgx:
//
//	err := inbox.OnceBatchPgx(ctx, in, pool, msgs, func(tx pgx.Tx, fresh []postrider.Message) error { ... })
func OnceBatchPgx[T PgxTx[Tag, R], Tag outbox.CommandTag, R Row](ctx context.Context, in *Inbox, db PgxBeginner[T], msgs []postrider.Message, fn func(tx T, fresh []postrider.Message) error) error {
	if len(msgs) == 0 {
		return nil
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return in.wrap("begin for", msgs[0].ID, err)
	}
	defer inboxsql.Rollback(ctx, tx)
	fresh, _, err := in.fresh(ctx, Pgx[Tag, R](tx), msgs)
	if err != nil {
		return err
	}
	if len(fresh) > 0 {
		if err := fn(tx, fresh); err != nil {
			return Classify(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return in.wrap("commit a batch with", msgs[0].ID, err)
	}
	return nil
}

// fresh claims msgs and returns those that were not claimed before, and what claimBatch
// returns.
func (in *Inbox) fresh(ctx context.Context, tx Conn, msgs []postrider.Message) ([]postrider.Message, int64, error) {
	claimed, at, err := in.claimBatch(ctx, tx, msgs)
	if err != nil {
		return nil, 0, err
	}
	fresh := make([]postrider.Message, 0, len(msgs))
	for i := range msgs {
		if claimed[i] {
			fresh = append(fresh, msgs[i])
		}
	}
	return fresh, at, nil
}
