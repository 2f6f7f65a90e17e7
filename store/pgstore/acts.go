package pgstore

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

func (s *Store) noteKinds(kinds map[int64]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = kinds
}

// executes are the statements that carry out a request, of whatever kind when no
// lease has listed it.
func (s *Store) executes(id int64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.carry.Of(s.kinds[id])
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
		case operations.IsPage(a.kinds[r.ID]):
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
