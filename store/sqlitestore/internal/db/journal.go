package db

import (
	"cmp"
	"context"
	"strings"

	"github.com/postrider/postrider/store/ops"
)

// ResultAsked is the result of an entry whose act a lane's owner carries out later.
const ResultAsked = "asked"

// nobody is who acts when nobody is named.
const nobody = "unknown"

// Note writes an entry into the journal, in the transaction of q, and returns its id. Its ID
// and At are not used.
func (o *Outbox) Note(ctx context.Context, q Querier, e *ops.JournalEntry) (id int64, err error) {
	if strings.TrimSpace(e.Actor) == "" {
		e.Actor = nobody
	}
	var target any
	if len(e.Target) > 0 {
		target = string(e.Target)
	}
	err = q.QueryRowContext(ctx, `INSERT INTO postrider_journal (at, actor, act, pipe, lane, seq, key, target, reason, result, records, ask)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		Micros(o.Now()), e.Actor, e.Act, e.Pipe, e.Lane, e.Seq, e.Key, target, e.Reason, cmp.Or(e.Result, ops.ResultDone), e.Count, e.Ask).Scan(&id)
	return id, err
}
