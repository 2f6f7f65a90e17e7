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
	var batches []store.Batch
	spent := 0
	for _, r := range reads {
		b := store.Batch{Lane: r.Lane}
		p := page{r: r, b: &b, left: math.MaxInt}
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
	rows, err := s.box.DB.QueryContext(ctx, `SELECT seq, `+db.MessageColumns+` FROM postrider_outbox
		WHERE lane = ? AND seq > ? ORDER BY seq LIMIT ?`, r.Lane, pos, limit(r))
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
	b.Position = encode(pos)
	return rows.Err()
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
