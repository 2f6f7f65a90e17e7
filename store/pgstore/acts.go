package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Request stores an act for the lane's owner, with its journal entry.
func (s *Store) Request(ctx context.Context, act store.Act) (int64, error) {
	if s.box.Bad != nil {
		return 0, s.box.Bad
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
		err = s.box.Ask(ctx, collect, s.sql.ask, s.opts.Pipe, act.Seq, string(act.Kind), act.Actor, act.Reason)
	case store.ActPause, store.ActResume:
		what = fmt.Sprintf("lane %d", act.Lane)
		err = s.box.Ask(ctx, collect, s.sql.askHold, s.opts.Pipe, int32(act.Lane), string(act.Kind), act.Actor, act.Reason, act.Key)
	default:
		return 0, fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
	}
	if err == nil && len(ids) == 0 {
		return 0, fmt.Errorf("%s of pipe %q: %w", what, s.opts.Pipe, store.ErrNotFound)
	}
	if err != nil {
		return 0, s.box.Wrap("store a request", err)
	}
	return ids[0], nil
}

// Acts reports what became of requests; ids that do not exist are left out.
func (s *Store) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
	}
	var found []ops.ActState
	err := s.box.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var a ops.ActState
			if err := rows.Scan(&a.ID, &a.Lane, &a.Done, &a.Result); err != nil {
				return err
			}
			found = append(found, a)
		}
		return rows.Err()
	}, s.sql.acts, s.opts.Pipe, ids)
	if err != nil {
		return nil, s.box.Wrap("look at requests", err)
	}
	return found, nil
}

func (s *Store) noteKinds(kinds map[int64]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = kinds
}

// executes are the statements that carry out a request: the one for its kind, or
// when no lease has listed it all of them. Each does nothing with other kinds, but
// to be allowed to ask is more than an admin has: a replay reads payloads.
func (s *Store) executes(id int64) []string {
	s.mu.Lock()
	kind := s.kinds[id]
	s.mu.Unlock()
	switch kind {
	case string(store.ActRetry), string(store.ActDiscard):
		return []string{s.sql.execute}
	case string(store.ActPause), string(store.ActResume):
		return []string{s.sql.executeHold}
	case string(store.ActReplay):
		return []string{s.sql.executeReplay}
	case "":
		return []string{s.sql.execute, s.sql.executeHold, s.sql.executeMany, s.sql.executeReplay}
	}
	return []string{s.sql.executeMany}
}

// pagesPerTurn is how many pages of orders an instance is told of with a
// heartbeat: they go into one settlement, which must not take long, and each of
// their lanes stops for it.
const pagesPerTurn = 4

// turn picks the requests that an instance is told of. Pages of orders take turns
// by chance: one that waits, for a rate or for what is live, keeps back no other.
func (a *standing) turn(mine func(store.Request) bool) []store.Request {
	var picked, pages []store.Request
	for _, r := range a.requests {
		switch {
		case !mine(r):
		case isPage(a.kinds[r.ID]):
			pages = append(pages, r)
		default:
			picked = append(picked, r)
		}
	}
	rand.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	picked = append(picked, pages[:min(len(pages), pagesPerTurn)]...)
	slices.SortFunc(picked, func(a, b store.Request) int { return cmp.Compare(a.ID, b.ID) })
	return picked
}

// isPage reports whether requests of the kind are pages of an order.
func isPage(kind string) bool {
	return strings.HasSuffix(kind, manySuffix) || kind == string(store.ActSkip) || kind == string(store.ActReplay)
}
