package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

const pruneEvery = 32 // settles of a lane between two prunings

// Settle applies the settlements in one round trip, which is one transaction.
// The progress row comes first and is the fence; parks follow only for lanes
// whose row was inserted by this very transaction, so that a repeated or a
// zombie's settle changes nothing.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
	}
	if len(settlements) == 0 {
		return nil, nil
	}
	return s.settle(ctx, s.knownIdentity(), settlements)
}

// settle applies settlements of the history that is known; "": of any.
func (s *Store) settle(ctx context.Context, known string, settlements []store.Settlement) ([]store.Lane, error) {
	sorted := slices.Clone(settlements)
	slices.SortFunc(sorted, func(a, b store.Settlement) int { return cmp.Compare(a.Lane, b.Lane) })
	p, err := s.progressOf(sorted, known)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	parks, err := parksOf(sorted)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	pipe := s.opts.Pipe
	b := &pgx.Batch{}
	s.box.QueueSession(b, s.box.Limits().Lock)
	if len(p.setIDs) > 0 {
		b.Queue(s.sql.running, p.setIDs, p.sets)
	}
	b.Queue(s.sql.settle, pipe, p.lanes, p.epochs, p.owners, p.marks, p.moves, p.pos, p.low, p.next,
		p.running, p.draining, p.drainSeq, p.delivered, known)
	if len(parks.seqs) > 0 {
		parks.queue(b, s.sql.park, pipe)
	}
	s.queueRest(b, sorted)
	var lost []store.Lane
	identity := ""
	b.Queue(s.sql.verdict, pipe, p.lanes, p.epochs, p.owners, p.marks).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var lane store.Lane
			var mine bool
			if err := rows.Scan(&lane, &mine, &identity); err != nil {
				return err
			}
			if !mine {
				lost = append(lost, lane)
			}
		}
		return rows.Err()
	})
	if err := s.box.Pool.SendBatch(ctx, b).Close(); err != nil {
		if db.Blocked(err) { // maybe by a settle of this instance that got half through
			_, eerr := s.evict(ctx)
			err = errors.Join(err, eerr, s.blocker(ctx))
		}
		return nil, s.box.Wrap("settle", err)
	}
	if err := s.checkIdentity(identity); err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	if known != "" && identity != known { // a lease came between
		return nil, fmt.Errorf("settle: %w", otherIdentity(known, identity))
	}
	return lost, nil
}

// queueRest queues the removal of parked records, acts, and pruning.
func (s *Store) queueRest(b *pgx.Batch, sorted []store.Settlement) {
	pipe := s.opts.Pipe
	var lanes, pruned []int16
	var epochs, seqs, settled []int64
	for _, st := range sorted {
		for _, seq := range st.Unpark {
			lanes, epochs, seqs = append(lanes, int16(st.Lane)), append(epochs, st.Epoch), append(seqs, seq)
		}
		if st.Epoch%pruneEvery == 0 && st.Epoch > db.KeepProgress {
			pruned, settled = append(pruned, int16(st.Lane)), append(settled, st.Epoch)
		}
	}
	if len(seqs) > 0 {
		b.Queue(s.sql.unpark, pipe, lanes, epochs, seqs)
	}
	if slices.ContainsFunc(sorted, func(st store.Settlement) bool { return len(st.Requests) > 0 }) {
		b.Queue(s.sql.actPlans)
	}
	for _, st := range sorted {
		for _, id := range st.Requests {
			for _, sql := range s.executes(id) {
				b.Queue(sql, pipe, id, int16(st.Lane), st.Epoch)
			}
		}
	}
	if len(pruned) > 0 {
		b.Queue(s.sql.prune, pipe, pruned, settled)
		b.Queue(s.sql.pruneRequests)
		b.Queue(s.sql.pruneRunning, time.Now().Add(-time.Hour).UnixMilli()<<20)
	}
}

// progressRows has the new progress rows, as columns.
type progressRows struct {
	lanes                   []int16
	owners                  []string
	epochs, marks, pos, low []int64
	next, delivered         []int64
	moves                   []bool
	running, drainSeq       []*int64
	draining                []*string
	setIDs                  []int64
	sets                    []string
}

func (s *Store) progressOf(sorted []store.Settlement, identity string) (*progressRows, error) {
	p := &progressRows{}
	ids := map[string]int64{}
	for i, st := range sorted {
		if i > 0 && sorted[i-1].Lane == st.Lane {
			return nil, fmt.Errorf("lane %d is named twice", st.Lane)
		}
		var c cursor
		if st.Position != nil {
			var err error
			if c, err = decodePosition(st.Position); err != nil {
				return nil, fmt.Errorf("lane %d: %w", st.Lane, err)
			}
			if identity != "" && c.history != historyOf(identity) {
				return nil, otherHistory(st.Lane)
			}
		}
		var running, drainSeq *int64
		var draining *string
		if len(c.inflight) > 0 {
			text := c.inflight.String()
			id, ok := ids[text]
			if !ok {
				id = db.NewRunningID()
				ids[text] = id
				p.setIDs, p.sets = append(p.setIDs, id), append(p.sets, text)
			}
			running = &id
		}
		if len(c.draining) > 0 {
			text := c.draining.String()
			draining, drainSeq = &text, &c.drainSeq
		}
		p.lanes, p.owners = append(p.lanes, int16(st.Lane)), append(p.owners, st.BootID)
		p.epochs, p.marks = append(p.epochs, st.Epoch), append(p.marks, markOf(&st))
		p.moves, p.pos = append(p.moves, st.Position != nil), append(p.pos, c.pos)
		p.low, p.next = append(p.low, c.low), append(p.next, int64(c.next))
		p.running, p.draining = append(p.running, running), append(p.draining, draining)
		p.drainSeq, p.delivered = append(p.drainSeq, drainSeq), append(p.delivered, int64(st.Delivered))
	}
	return p, nil
}

// markOf returns the settlement's mark. It is never 0, which is the mark of a lease.
func markOf(st *store.Settlement) int64 { return int64(st.Mark() | 1) }

// parkRows has the records to park, as columns.
type parkRows struct {
	lanes                                           []int16
	epochs, seqs, dues, versions                    []int64
	states, classes, codes, errs                    []string
	captures                                        []bool
	attempts, schemaVersions                        []int32
	created, notBefore                              []*time.Time
	ids, topics, keys, types, contentTypes, headers []string
	payloads                                        [][]byte
}

func parksOf(sorted []store.Settlement) (*parkRows, error) {
	p := &parkRows{}
	for _, st := range sorted {
		for i := range st.Park {
			if err := p.add(st, &st.Park[i]); err != nil {
				return nil, fmt.Errorf("lane %d, record %d: %w", st.Lane, st.Park[i].Seq, err)
			}
		}
	}
	return p, nil
}

func (p *parkRows) add(st store.Settlement, k *store.Park) error {
	switch k.State {
	case store.Scheduled, store.Retry, store.Waiting, store.Dead:
	default:
		return fmt.Errorf("state %s cannot be parked", k.State)
	}
	headers := []byte("{}")
	m := &k.Message
	if len(m.Headers) > 0 {
		var err error
		if headers, err = json.Marshal(m.Headers); err != nil {
			return err
		}
	}
	created := m.Time
	if created.IsZero() {
		created = time.Now()
	}
	var notBefore *time.Time
	if !m.NotBefore.IsZero() {
		notBefore = &m.NotBefore
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	p.lanes, p.epochs, p.seqs = append(p.lanes, int16(st.Lane)), append(p.epochs, st.Epoch), append(p.seqs, k.Seq)
	p.states, p.captures = append(p.states, k.State.String()), append(p.captures, k.Captures)
	p.dues, p.attempts = append(p.dues, k.DueIn.Microseconds()), append(p.attempts, int32(k.Attempts))
	p.classes, p.codes, p.errs = append(p.classes, k.Class), append(p.codes, k.Code), append(p.errs, k.Error)
	p.created, p.notBefore = append(p.created, &created), append(p.notBefore, notBefore)
	p.versions, p.schemaVersions = append(p.versions, m.Version), append(p.schemaVersions, m.SchemaVersion)
	p.ids, p.topics, p.keys = append(p.ids, m.ID), append(p.topics, m.Topic), append(p.keys, m.Key)
	p.types, p.contentTypes = append(p.types, m.Type), append(p.contentTypes, m.ContentType)
	p.headers, p.payloads = append(p.headers, string(headers)), append(p.payloads, payload)
	return nil
}

func (p *parkRows) queue(b *pgx.Batch, sql, pipe string) {
	b.Queue(sql, pipe, p.lanes, p.epochs, p.seqs, p.states, p.captures, p.dues, p.attempts, p.classes, p.codes, p.errs,
		p.created, p.notBefore, p.versions, p.schemaVersions, p.ids, p.topics, p.keys, p.types, p.contentTypes, p.headers, p.payloads)
}
