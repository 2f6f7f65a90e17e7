package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// request is an act that somebody asked for.
type request struct {
	store.Request
	pipe   *pipe
	done   bool
	result string
}

// Request implements ops.Admin.
func (s desk) Request(ctx context.Context, act store.Act) (int64, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer s.db.mu.Unlock()
	lane, err := s.db.laneOfAct(p, act)
	if err != nil {
		return 0, err
	}
	s.db.requestID++
	r := &request{pipe: p}
	r.Request = store.Request{ID: s.db.requestID, Lane: lane, Act: act}
	s.db.requests = append(s.db.requests, r)
	if s.db.opts.Defect == ActAtOnce {
		s.db.execute(p, p.lanes[lane], r.ID)
	}
	s.db.ring()
	return r.ID, nil
}

func (db *database) laneOfAct(p *pipe, act store.Act) (store.Lane, error) {
	switch act.Kind {
	case store.ActPause, store.ActResume:
		if act.Key != "" {
			return db.laneOf(act.Key, ""), nil
		}
		if int(act.Lane) < len(p.lanes) && act.Lane >= 0 {
			return act.Lane, nil
		}
		return 0, fmt.Errorf("memory: lane %d of %d: %w", act.Lane, len(p.lanes), store.ErrNotFound)
	case store.ActSkip, store.ActReplay: // orders, which this store does not know
	case store.ActRetry, store.ActDiscard:
		for id, l := range p.lanes {
			if l.parked[act.Seq] != nil {
				return store.Lane(id), nil
			}
		}
		return 0, fmt.Errorf("memory: no parked record %d: %w", act.Seq, store.ErrNotFound)
	}
	return 0, fmt.Errorf("memory: act %q: %w", act.Kind, ops.ErrUnsupported)
}

// execute carries out an act once. Acts of other lanes and pipes are left alone.
func (db *database) execute(p *pipe, l *lane, id int64) {
	i := slices.IndexFunc(db.requests, func(r *request) bool { return r.ID == id })
	if i < 0 {
		return
	}
	r := db.requests[i]
	if r.done || r.pipe != p || p.lanes[r.Lane] != l {
		return
	}
	r.done, r.result = true, ops.ResultGone
	if r.Kind == store.ActPause || r.Kind == store.ActResume {
		r.result = l.hold(r.Kind == store.ActPause, r.Key, db.opts.Now())
		return
	}
	rec := l.parked[r.Seq]
	if rec == nil {
		return
	}
	r.result = ops.ResultDone
	if r.Kind == store.ActDiscard {
		delete(l.parked, r.Seq)
		l.discarded++
		return
	}
	if rec.state == store.Dead {
		rec.state = store.Retry
		rec.captures = rec.message.Key != "" && db.opts.Defect != RetryFreesKey
	}
	rec.due = db.opts.Now()
	if db.opts.Defect != RetryKeepsAttempts {
		rec.attempts = 0
		rec.generation++
		if strings.HasPrefix(rec.code, store.CodeCrashed+"/") {
			rec.code = store.CodeCrashed // its earlier failures are forgotten too
		}
	}
}

// hold pauses or resumes a key, or with an empty one the lane.
func (l *lane) hold(on bool, key string, now time.Time) string {
	if _, held := l.holds[key]; held == on {
		return ops.ResultUnchanged
	}
	delete(l.holds, key)
	if on {
		l.holds[key] = now
	}
	return ops.ResultDone
}

// Acts implements ops.Admin. Ids that do not exist are left out.
func (s desk) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	var states []ops.ActState
	for _, r := range s.db.requests {
		if slices.Contains(ids, r.ID) {
			states = append(states, ops.ActState{ID: r.ID, Lane: r.Lane, Done: r.done, Result: r.result})
		}
	}
	return states, nil
}

// Parked implements ops.Admin.
func (s desk) Parked(ctx context.Context, q ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	now := s.db.opts.Now()
	total := 0
	for _, l := range p.lanes {
		total += len(l.parked)
	}
	if total == 0 {
		return nil, nil
	}
	found := make([]ops.ParkedRecord, 0, total)
	for id, l := range p.lanes {
		for _, r := range l.parked {
			if r.matches(q) {
				found = append(found, r.record(store.Lane(id), now))
			}
		}
	}
	slices.SortFunc(found, func(a, b ops.ParkedRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	return found[:min(limit, len(found))], nil
}

func (r *parked) matches(q ops.ParkedQuery) bool {
	return r.seq > q.AfterSeq &&
		(q.State == store.Pending || q.State == r.state) &&
		(q.ID == "" || q.ID == r.message.ID) &&
		(q.Topic == "" || q.Topic == r.message.Topic) &&
		(q.Key == "" || q.Key == r.message.Key) && (q.Code == "" || q.Code == r.code)
}

func (r *parked) record(id store.Lane, now time.Time) ops.ParkedRecord {
	return ops.ParkedRecord{
		Lane: id, Seq: r.seq, Message: r.message, State: r.state, Captures: r.captures,
		Attempts: r.attempts, Generation: r.generation, DueIn: r.due.Sub(now),
		Class: r.class, Code: r.code, Error: r.text, FirstFailed: r.first, LastAttempt: r.last,
	}
}

// Status implements ops.Admin. It counts everything; nothing is capped.
func (s desk) Status(ctx context.Context) (ops.Status, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return ops.Status{}, err
	}
	defer s.db.mu.Unlock()
	now := s.db.opts.Now()
	st := ops.Status{Identity: s.db.identity, Pipe: s.name, Parked: map[string]int64{}}
	for id, l := range p.lanes {
		ls := s.db.laneStatus(store.Lane(id), l, now)
		st.Lanes = append(st.Lanes, ls)
		st.Pending += ls.Pending
		st.Delivered += ls.Delivered
		st.Lag = max(st.Lag, ls.Lag)
		for _, r := range l.parked {
			st.Parked[r.state.String()]++
		}
		for _, key := range sortedKeys(l.holds) {
			st.Holds = append(st.Holds, ops.Hold{Lane: store.Lane(id), Key: key, Since: l.holds[key]})
		}
	}
	for _, id := range sortedKeys(s.db.instances) {
		i := s.db.instances[id]
		in := ops.Instance{BootID: id, Name: i.name, Alive: now.Before(i.until), AliveFor: i.until.Sub(now), Trouble: i.report.Trouble, Held: i.report.Held}
		for _, l := range p.lanes {
			if l.owner == id {
				in.Lanes++
			}
		}
		st.Instances = append(st.Instances, in)
	}
	return st, nil
}

func (db *database) laneStatus(id store.Lane, l *lane, now time.Time) ops.LaneStatus {
	ls := ops.LaneStatus{
		Lane: id, Epoch: l.epoch, Delivered: l.delivered, Parked: int64(len(l.parked)), SettledAt: l.settledAt,
	}
	if i := db.instances[l.owner]; l.owner != "" && i != nil {
		ls.Owner, ls.Leased, ls.Until = i.name, now.Before(i.until), i.until.Sub(now)
	}
	for _, r := range db.log[id] {
		if r.tx.status == Committed && !db.settled(l, r) {
			ls.Pending++
			ls.Behind = max(ls.Behind, now.Sub(expected(&r.rec.Message)))
		}
	}
	ls.Lag = ls.Behind
	for _, r := range l.parked {
		if r.state != store.Dead {
			ls.Pending++
			if db.opts.Defect != LagForgetsParked {
				ls.Lag = max(ls.Lag, now.Sub(r.expected()))
			}
		}
	}
	return ls
}

// expected is when the message was to be sent.
func expected(m *postrider.Message) time.Time {
	if m.NotBefore.After(m.Time) {
		return m.NotBefore
	}
	return m.Time
}

// expected is when the record was to be sent. Of one that a person sends again, its
// first age is not how late it is.
func (r *parked) expected() time.Time {
	switch {
	case r.state == store.Scheduled:
		return r.due
	case r.generation > 0 && !r.first.IsZero():
		return r.first
	case r.generation > 0:
		return r.parkedAt
	}
	return expected(&r.message)
}
