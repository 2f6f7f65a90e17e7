package memstore

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

const defaultReach = 1024

// Messages is the answer of the view of messages that stores in a database have: every
// message that the pipe still answers for, by lane and number. When a message was sent
// is not noted in memory: SentAt is zero.
func (s *Store) Messages() []ops.ViewRow {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var all []ops.ViewRow
	for id, l := range s.db.pipe(s.name).lanes {
		v := s.laneView(l)
		var rows []ops.ViewRow
		for _, r := range l.parked {
			rows = append(rows, v.parked(l, r))
		}
		place := 0
		for _, r := range s.db.log[id] {
			if r.tx.status != Committed || l.parked[r.seq] != nil {
				continue
			}
			row := v.row(&r.rec.Message, r.seq)
			if s.db.settled(l, r) {
				row.State, row.Attempts = ops.ViewSent, -1
				row.LockOwner, row.LockedUntil = "", time.Time{}
			} else {
				place++
				v.pending(&row, place)
			}
			rows = append(rows, row)
		}
		for i := range rows {
			rows[i].Pipe, rows[i].Lane = s.name, store.Lane(id)
		}
		slices.SortFunc(rows, func(a, b ops.ViewRow) int { return cmp.Compare(a.Seq, b.Seq) })
		all = append(all, rows...)
	}
	return all
}

// laneView is what the view knows of one lane.
type laneView struct {
	now      time.Time
	owner    string
	until    time.Time
	reach    int
	held     []store.Held
	holds    map[string]time.Time
	waitsFor string // of the lane as a whole
}

func (s *Store) laneView(l *lane) laneView {
	v := laneView{now: s.db.opts.Now(), reach: defaultReach, holds: l.holds}
	if i := s.db.instances[l.owner]; l.owner != "" && i != nil && v.now.Before(i.until) {
		v.owner, v.until, v.held = i.name, i.until, i.report.Held
		if i.report.Reach > 0 {
			v.reach = i.report.Reach
		}
	}
	_, held := l.holds[""]
	switch {
	case s.db.pipe(s.name).paused:
		v.waitsFor = "a person: the pipe is paused"
	case held:
		v.waitsFor = "a person: the lane is paused"
	case v.owner == "":
		v.waitsFor = "a relay: none holds the lane"
	default:
		v.waitsFor = v.heldBy("")
	}
	return v
}

// heldBy is why nothing is sent to a topic now, or to anywhere; "" if it is.
func (v *laneView) heldBy(topic string) string {
	for _, h := range v.held {
		if h.Destination != topic {
			continue
		}
		text := "the broker"
		if topic != "" {
			text = "the destination " + topic
		}
		for _, part := range []string{h.Code, h.Error} {
			if part != "" {
				text += ": " + part
			}
		}
		return text
	}
	return ""
}

func (v *laneView) row(m *postrider.Message, seq int64) ops.ViewRow {
	return ops.ViewRow{
		Seq: seq, ID: m.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Version: m.Version,
		CreatedAt: m.Time, NotBefore: m.NotBefore, LockOwner: v.owner, LockedUntil: v.until,
		ContentType: m.ContentType, SchemaVersion: m.SchemaVersion, Headers: m.Headers, PayloadBytes: int64(len(m.Payload)),
	}
}

// pending fills in a row that is not settled and has that place among those of its lane.
func (v *laneView) pending(row *ops.ViewRow, place int) {
	row.State, row.WaitsFor = ops.ViewPending, cmp.Or(v.waitsFor, v.heldBy(row.Topic))
	if row.WaitsFor == "" && place <= v.reach {
		row.State = ops.ViewInProgress
	}
}

func (v *laneView) parked(l *lane, r *parked) ops.ViewRow {
	row := v.row(&r.message, r.seq)
	row.State, row.Parked, row.Attempts, row.Generation = ops.ViewPending, r.state.String(), r.attempts, r.generation
	row.FirstFailed, row.LastAttempt, row.ErrorClass, row.ErrorCode, row.Error = r.first, r.last, r.class, r.code, r.text
	if r.state == store.Retry || r.state == store.Scheduled {
		row.NextAttempt = r.due
	}
	_, paused := v.holds[r.message.Key]
	switch {
	case r.state == store.Dead:
		row.State, row.WaitsFor = ops.ViewDeadLetter, "a person: dead retry or dead discard"
		row.LockOwner, row.LockedUntil = "", time.Time{}
	case paused && r.message.Key != "":
		row.WaitsFor = "a person: the key is paused"
	case r.state == store.Scheduled && r.due.After(v.now):
		row.WaitsFor = "its time"
	case r.state == store.Retry:
		row.WaitsFor = cmp.Or(v.waitsFor, v.heldBy(row.Topic), "its next attempt")
	default:
		row.WaitsFor = cmp.Or(l.ahead(r), v.waitsFor, v.heldBy(row.Topic))
	}
	if r.state == store.Retry {
		row.State = ops.ViewFailed
	}
	return row
}

// ahead names the first message of the record's key that it waits behind, if any.
func (l *lane) ahead(r *parked) string {
	var first *parked
	for _, q := range l.parked {
		if q.chained() && q.message.Key == r.message.Key && (q.seq < r.seq || r.state == store.Scheduled) && (first == nil || q.seq < first.seq) {
			first = q
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("message %d of its key, which is %s", first.seq, first.state)
}
