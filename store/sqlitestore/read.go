package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// A position is the number of the last record, 8 bytes, big-endian.
func encode(pos int64) store.Position { return binary.BigEndian.AppendUint64(nil, uint64(pos)) }

func decode(p store.Position) (int64, error) {
	if len(p) != 8 {
		return 0, fmt.Errorf("a position of %d bytes was not made by this store", len(p))
	}
	return int64(binary.BigEndian.Uint64(p)), nil
}

// messageColumns are the columns of a message in either table.
const messageColumns = "id, topic, key, type, CAST(payload AS BLOB), content_type, headers, version, schema_version, not_before, created_at"

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if len(reads) == 0 {
		return nil, nil
	}
	newest, err := s.newest(ctx, s.db)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.seen = newest
	s.mu.Unlock()
	if err := s.assertIdentity(ctx, s.db); err != nil {
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
			return nil, s.wrap(fmt.Sprintf("read lane %d", r.Lane), err)
		}
		batches = append(batches, b)
	}
	return batches, nil
}

// assertIdentity reports ErrIdentity when the database is not the one leased.
func (s *Store) assertIdentity(ctx context.Context, q querier) error {
	var found string
	if err := q.QueryRowContext(ctx, `SELECT identity FROM postrider_info`).Scan(&found); err != nil {
		return s.wrap("read the identity", err)
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
		err = s.db.QueryRowContext(ctx, `SELECT pos FROM postrider_progress WHERE pipe = ? AND lane = ?`, s.opts.Pipe, r.Lane).Scan(&pos)
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
	rows, err := s.db.QueryContext(ctx, `SELECT seq, `+messageColumns+` FROM postrider_outbox
		WHERE lane = ? AND seq > ? ORDER BY seq LIMIT ?`, r.Lane, pos, limit(r))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() && !b.More {
		var meta store.Meta
		m, err := scanMessage(rows, []any{&meta.Seq}, nil)
		if err != nil {
			return err
		}
		if !m.NotBefore.IsZero() {
			meta.DueIn = max(0, s.until(micros(m.NotBefore)))
		}
		if p.add(m, meta) {
			pos = meta.Seq
		}
	}
	b.Position = encode(pos)
	return rows.Err()
}

// limit is one record more than asked for: the one that says that there is more.
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

// scanMessage scans a row whose message columns stand between others.
func scanMessage(rows *sql.Rows, before, behind []any) (postrider.Message, error) {
	var m postrider.Message
	var headers string
	var notBefore, created sql.NullInt64
	dest := append(append(before, &m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &headers,
		&m.Version, &m.SchemaVersion, &notBefore, &created), behind...)
	if err := rows.Scan(dest...); err != nil {
		return m, err
	}
	if headers != "{}" {
		if err := json.Unmarshal([]byte(headers), &m.Headers); err != nil {
			return m, fmt.Errorf("headers of message %s: %w", m.ID, err)
		}
	}
	m.NotBefore, m.Time = moment(notBefore), moment(created)
	return m, nil
}
