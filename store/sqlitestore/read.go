package sqlitestore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// A position is the number of the last record, 8 bytes, big-endian.
func encode(pos int64) store.Position { return binary.BigEndian.AppendUint64(nil, uint64(pos)) }

func decode(p store.Position) (int64, error) {
	if len(p) != 8 {
		return 0, fmt.Errorf("a position of %d bytes was not made by this store", len(p))
	}
	return int64(binary.BigEndian.Uint64(p)), nil
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if len(reads) == 0 {
		return nil, nil
	}
	newest, err := s.box.Newest(ctx, s.box.DB)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.seen = newest
	s.mu.Unlock()
	if err := s.assertIdentity(ctx, s.box.DB); err != nil {
		return nil, err
	}
	filter, err := s.passing(ctx)
	if err != nil {
		return nil, err
	}
	var batches []store.Batch
	spent := 0
	for _, r := range reads {
		b := store.Batch{Lane: r.Lane}
		p := page{r: r, b: &b, left: math.MaxInt, filter: filter, look: max(mostLooked/len(reads), 1)}
		if r.Within > 0 {
			p.left = r.Within - spent
		}
		if r.Parked {
			err = s.readParked(ctx, &p)
		} else {
			err = s.readLane(ctx, &p)
		}
		spent += p.size
		if err != nil {
			return nil, s.box.Wrap(fmt.Sprintf("read lane %d", r.Lane), err)
		}
		batches = append(batches, b)
	}
	return batches, nil
}

// assertIdentity reports ErrIdentity when the database is not the one leased.
func (s *Store) assertIdentity(ctx context.Context, q db.Querier) error {
	var found string
	if err := q.QueryRowContext(ctx, `SELECT identity FROM postrider_info`).Scan(&found); err != nil {
		return s.box.Wrap("read the identity", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity != "" && s.identity != found {
		return fmt.Errorf("sqlite: leased under %s, found %s: %w", s.identity, found, store.ErrIdentity)
	}
	return nil
}

func (s *Store) readLane(ctx context.Context, p *page) error {
	r, b := p.r, p.b
	var pos int64
	var err error
	if r.After == nil {
		err = s.box.DB.QueryRowContext(ctx, `SELECT pos FROM postrider_progress WHERE pipe = ? AND lane = ?`, s.box.Pipe, r.Lane).Scan(&pos)
	} else {
		pos, err = decode(r.After)
	}
	if err != nil {
		return err
	}
	if p.left <= 0 { // there may be more, and none of it fits
		b.Position, b.More = encode(pos), true
		return nil
	}
	var last int64  // where the look ends when there is a filter
	var beyond bool // rows may stand behind it
	and, args := "", []any{r.Lane, pos, limit(r)}
	if p.filter != db.Everything {
		if last, beyond, err = s.reach(ctx, r.Lane, pos, p.look); err != nil {
			return err
		}
		and, args = ` AND seq <= ?4 AND `+db.Passes("?5", "o"), append(args, last, p.filter)
	}
	rows, err := s.box.DB.QueryContext(ctx, `SELECT seq, `+db.MessageColumns+` FROM postrider_outbox o
		WHERE lane = ?1 AND seq > ?2`+and+` ORDER BY seq LIMIT ?3`, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() && !b.More {
		var meta store.Meta
		m, err := db.ScanMessage(rows, []any{&meta.Seq}, nil)
		if err != nil {
			return err
		}
		if !m.NotBefore.IsZero() {
			meta.DueIn = max(0, s.box.Until(db.Micros(m.NotBefore)))
		}
		if p.add(m, meta) {
			pos = meta.Seq
		}
	}
	if p.filter != db.Everything && !b.More { // behind the last message stand those of other pipes
		pos, b.More = last, beyond
	}
	b.Position = encode(pos)
	return rows.Err()
}

// mostLooked is how many rows a read of a pipe with a filter looks at, over all lanes.
const mostLooked = 16_384

// reach is the number of the last of some rows of a lane, and whether there are so many.
func (s *Store) reach(ctx context.Context, lane store.Lane, pos int64, rows int) (last int64, more bool, err error) {
	var n int
	err = s.box.DB.QueryRowContext(ctx, `SELECT count(*), coalesce(max(seq), ?2) FROM (SELECT seq FROM postrider_outbox WHERE lane = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3)`,
		lane, pos, rows).Scan(&n, &last)
	return last, n == rows, err
}

// passing returns the pipe's filter, which the last lease told.
func (s *Store) passing(ctx context.Context) (string, error) {
	s.mu.Lock()
	filter := s.filter
	s.mu.Unlock()
	if filter != "" {
		return filter, nil
	}
	filter, _, err := s.box.Set(ctx, s.box.DB)
	return filter, s.box.Wrap("read the filter", err)
}

// limit is one record more than asked for, which shows that there is more.
func limit(r store.LaneRead) int {
	if r.MaxRecords <= 0 {
		return -1
	}
	return r.MaxRecords + 1
}

// page fills a batch up to its limits.
type page struct {
	r    store.LaneRead
	b    *store.Batch
	size int
	left int // bytes that it may hold, its first record included

	filter string // of the pipe
	look   int    // most rows to look at when there is one
}

func (p *page) add(m postrider.Message, meta store.Meta) bool {
	n, size := len(p.b.Messages), p.size+m.Size()
	if n > 0 && (p.r.MaxRecords > 0 && n >= p.r.MaxRecords || p.r.MaxBytes > 0 && size > p.r.MaxBytes) || size > p.left {
		p.b.More = true
		return false
	}
	p.b.Messages, p.b.Meta, p.size = append(p.b.Messages, m), append(p.b.Meta, meta), size
	return true
}
