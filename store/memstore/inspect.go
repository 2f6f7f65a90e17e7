package memstore

import (
	"cmp"
	"maps"
	"slices"

	"github.com/postrider/postrider/store"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// All returns every record ever written and not trimmed, also of transactions
// that are open or were rolled back, by number.
func (s *Store) All() []Record {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var all []Record
	for _, rows := range s.db.log {
		for _, r := range rows {
			rec := r.rec
			rec.Status = r.tx.status
			all = append(all, rec)
		}
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

// Committed returns the records of committed transactions, by number.
func (s *Store) Committed() []Record {
	return slices.DeleteFunc(s.All(), func(r Record) bool { return r.Status != Committed })
}

// Book is the account of one lane. Committed and Unsettled are counted from
// rows, Delivered and Discarded by counters, so that
// Committed = Unsettled + Parked + Delivered + Discarded proves something.
type Book struct {
	Lane      store.Lane
	Committed int64
	Unsettled int64
	Parked    int64
	Delivered int64
	Discarded int64
}

// Balanced reports whether the two sides of the book agree.
func (b Book) Balanced() bool {
	return b.Committed == b.Unsettled+b.Parked+b.Delivered+b.Discarded
}

// Books returns the account of every lane. They balance from the start for the
// default pipe; a pipe made later starts behind what was committed before.
func (s *Store) Books() []Book {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var books []Book
	for id, l := range s.db.pipe(s.name).lanes {
		b := Book{
			Lane: store.Lane(id), Committed: l.trimmed,
			Parked: int64(len(l.parked)), Delivered: l.delivered, Discarded: l.discarded,
		}
		for _, r := range s.db.log[id] {
			if r.tx.status != Committed {
				continue
			}
			b.Committed++
			if !s.db.settled(l, r) {
				b.Unsettled++
			}
		}
		books = append(books, b)
	}
	return books
}

// Held returns who holds each lane: the boot id of a live owner, "" if nobody.
func (s *Store) Held() []string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := s.db.opts.Now()
	p := s.db.pipe(s.name)
	held := make([]string, len(p.lanes))
	for id, l := range p.lanes {
		if i := s.db.instances[l.owner]; i != nil && now.Before(i.until) {
			held[id] = l.owner
		}
	}
	return held
}

// LaneOf returns the lane of messages of key.
func (s *Store) LaneOf(key string) store.Lane {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.laneOf(key, "")
}

// Paused reports whether a person has paused the key or the whole lane.
func (s *Store) Paused(id store.Lane, key string) bool {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.pipe(s.name).lanes[id].held(key)
}

// ChangeIdentity makes the database another one in the eyes of those who leased
// from it, as a failover does.
func (s *Store) ChangeIdentity(to string) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.identity = to
	s.db.ring()
}

// Trim removes the records that every pipe has settled and the transactions
// that left none behind, and returns the number of records removed. Books continue
// counting them, All does not.
func (s *Store) Trim() int {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	db := s.db
	removed := 0
	for id, rows := range db.log {
		kept := rows[:0:0]
		for _, r := range rows {
			status := r.tx.status
			if status == RolledBack || status == Committed && db.settledEverywhere(id, r) {
				removed++
				if status == Committed {
					db.countTrimmed(id)
				}
				continue
			}
			kept = append(kept, r)
		}
		db.log[id] = kept
	}
	db.trimTransactions()
	return removed
}

func (db *database) settledEverywhere(id int, r *row) bool {
	for _, p := range db.pipes {
		if !db.settled(p.lanes[id], r) {
			return false
		}
	}
	return true
}

func (db *database) countTrimmed(id int) {
	for _, p := range db.pipes {
		p.lanes[id].trimmed++
	}
}

// trimTransactions forgets the rows that are no longer in the log.
func (db *database) trimTransactions() {
	left := map[int64][]*row{}
	for id, rows := range db.log {
		for _, r := range rows {
			left[r.xid] = append(left[r.xid], r)
		}
		for _, p := range db.pipes {
			l := p.lanes[id]
			l.head = 0
			gone := map[int64]bool{}
			for _, r := range rows {
				if l.gone[r.seq] {
					gone[r.seq] = true
				}
			}
			l.gone = gone
		}
	}
	for xid, t := range db.txs {
		if t.status == Open {
			continue
		}
		t.rows = left[xid]
		slices.SortFunc(t.rows, func(a, b *row) int { return cmp.Compare(a.seq, b.seq) })
		if len(t.rows) == 0 {
			delete(db.txs, xid)
		}
	}
}

// PendingIDs returns the ids of the committed records of a lane that this pipe
// has not settled, by number.
func (s *Store) PendingIDs(id store.Lane) []string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var ids []string
	l := s.db.pipe(s.name).lanes[id]
	for _, r := range s.db.log[id][l.head:] {
		if r.tx.status == Committed && !s.db.settled(l, r) {
			ids = append(ids, r.rec.Message.ID)
		}
	}
	return ids
}
