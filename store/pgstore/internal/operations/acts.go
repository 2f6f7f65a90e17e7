package operations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Request stores an act for the lane's owner, with its journal entry.
func (s *Admin) Request(ctx context.Context, act store.Act) (int64, error) {
	if s.Bad != nil {
		return 0, s.Bad
	}
	var ids []int64
	collect := func(rows pgx.Rows) (err error) {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	}
	var err error
	var what string
	switch act.Kind {
	case store.ActRetry, store.ActDiscard:
		what = fmt.Sprintf("parked record %d", act.Seq)
		err = s.Ask(ctx, collect, s.sql.ask, s.Pipe, act.Seq, string(act.Kind), act.Actor, act.Reason)
	case store.ActPause, store.ActResume:
		what = fmt.Sprintf("lane %d", act.Lane)
		err = s.Ask(ctx, collect, s.sql.askHold, s.Pipe, int32(act.Lane), string(act.Kind), act.Actor, act.Reason, act.Key)
	default:
		return 0, fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
	}
	if err == nil && len(ids) == 0 {
		err = exists(ctx, s.Outbox)
	}
	if err == nil && len(ids) == 0 {
		return 0, fmt.Errorf("%s of pipe %q: %w", what, s.Pipe, store.ErrNotFound)
	}
	if err != nil {
		return 0, s.Wrap("store a request", err)
	}
	return ids[0], nil
}

// Acts returns the results of requests; ids that do not exist are left out.
func (s *Admin) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	var found []ops.ActState
	err := s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var a ops.ActState
			if err := rows.Scan(&a.ID, &a.Lane, &a.Done, &a.Result); err != nil {
				return err
			}
			found = append(found, a)
		}
		return rows.Err()
	}, s.sql.acts, s.Pipe, ids)
	if err != nil {
		return nil, s.Wrap("look at requests", err)
	}
	return found, nil
}

// IsPage reports whether requests of this kind are pages of an order.
func IsPage(kind string) bool {
	return strings.HasSuffix(kind, ManySuffix) || kind == string(store.ActSkip) || kind == string(store.ActReplay)
}
