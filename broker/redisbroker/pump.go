package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// longestWait bounds how long the pump waits for new entries at a stretch.
const longestWait = time.Second

// pump keeps the leases and reads until the source is closed. It reads independently of
// receivers: the end of a receiver's context must not lose an answer.
func (s *Source) pump() {
	defer close(s.ended)
	var tended time.Time
	pause := time.Duration(0)
	for s.life.Err() == nil {
		var err error
		if every := min(s.opts.Lease/5, 500*time.Millisecond); time.Since(tended) >= every {
			if err = s.tend(); err == nil {
				tended = time.Now()
			}
		}
		if err == nil {
			err = s.round(tended.Add(min(s.opts.Lease/5, 500*time.Millisecond)))
		}
		if err == nil || s.life.Err() != nil {
			pause = 0
			continue
		}
		s.trouble(err)
		pause = min(max(2*pause, 50*time.Millisecond), longestWait)
		ctx, cancel := context.WithTimeout(s.life, pause)
		<-ctx.Done()
		cancel()
	}
}

// trouble passes err to the next Receive, and has all pending entries claimed
// once more, because an answer may have been lost.
func (s *Source) trouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = fmt.Errorf("redisbroker: receive for group %s: %w", s.opts.Group, err)
	for _, st := range s.streams {
		if st.held {
			st.claim = "0-0"
		}
	}
	s.wake()
	if moved(err) {
		s.read.leave()
	}
}

// failure returns the error of the connection, or of the first failed command.
func failure(err error, cmds ...redis.Cmder) error {
	if err != nil {
		return err
	}
	for _, c := range cmds {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// tend renews the leases. It gives leases above this source's share back, and takes free
// ones below it.
func (s *Source) tend() error {
	began := time.Now()
	ttl := s.opts.Lease.Milliseconds()
	present := redis.NewCmd(s.life, "eval", presentScript, 1, s.members, s.id, ttl)
	_, err := s.read.exec(s.life, present)
	if err := failure(err, present); err != nil {
		return err
	}
	live, _ := present.Val().(int64)
	n := max(int(live), 1)
	share := (len(s.streams) + n - 1) / n
	wanted, cmds := s.choose(share)
	if len(cmds) == 0 {
		return nil
	}
	_, err = s.read.exec(s.life, cmds...)
	if err := failure(err, cmds...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range wanted {
		if st == nil {
			continue // given back
		}
		s.leased(st, cmds[i].(*redis.Cmd).Val(), began)
	}
	return nil
}

// choose returns the commands that keep, take and give back leases, and the
// streams of those commands; nil for a lease that is given back.
func (s *Source) choose(share int) (wanted []*stream, cmds []redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ttl, holds := s.opts.Lease.Milliseconds(), 0
	lease := func(st *stream) {
		wanted = append(wanted, st)
		cmds = append(cmds, redis.NewCmd(s.life, "eval", leaseScript, 1, st.lease, s.id, ttl))
	}
	for _, st := range s.streams {
		if !st.held {
			continue
		}
		holds++
		if st.leaving = holds > share; st.leaving && st.out == 0 {
			st.drop()
			wanted = append(wanted, nil)
			cmds = append(cmds, redis.NewCmd(s.life, "eval", releaseScript, 1, st.lease, s.id))
			continue
		}
		lease(st)
	}
	for n := 0; n < len(s.streams) && holds < share; n++ {
		s.try++
		if st := s.streams[s.try%len(s.streams)]; !st.held {
			lease(st)
			holds++ // provided that it is free
		}
	}
	return wanted, cmds
}

// leased records the answer to a lease command. The caller holds mu.
func (s *Source) leased(st *stream, answer any, began time.Time) {
	whose, _ := answer.(int64)
	if st.held && whose != 1 {
		s.lose(st)
	}
	if whose != 0 && !st.held { // also a lease that was taken, or given back, by a command whose answer was lost
		st.drop()
		st.held, st.claim = true, "0-0"
	}
	if st.held {
		st.until = began.Add(s.opts.Lease * 9 / 10)
	}
}

// lose ends work on a stream that another source may read now. The caller holds mu.
func (s *Source) lose(st *stream) {
	st.drop()
	s.wake()
	s.opts.Logger.WarnContext(s.life, "redis lease lost", slog.String("stream", st.name), slog.String("group", s.opts.Group))
}

// round does the next step: claim pending entries, read new ones, or wait.
func (s *Source) round(until time.Time) error {
	now := time.Now()
	s.mu.Lock()
	room := s.opts.MaxHeld
	held := 0
	var claim *stream
	var ready []*stream
	for _, st := range s.streams {
		room -= len(st.inHand)
		held += st.log.Bytes()
		switch {
		case !st.held || st.leaving || now.Before(st.again):
		case st.claim != "" || !st.grouped:
			claim = st
		default:
			ready = append(ready, st)
		}
	}
	if s.largest > 0 {
		s.budget.Seen(s.largest)
		s.page.Seen(s.largest)
		s.largest = 0
	}
	room = s.page.Ask(s.budget.Ask(room, held), 0)
	change := s.change
	s.mu.Unlock()
	switch {
	case claim != nil && !claim.grouped:
		return s.group(claim)
	case room <= 0 || claim == nil && len(ready) == 0:
		ctx, cancel := context.WithDeadline(s.life, until)
		defer cancel()
		await(ctx, change)
		return nil
	case claim != nil:
		return s.reclaim(claim, room)
	}
	return s.fetch(ready, room, until)
}

// group creates a missing consumer group, from the beginning of the stream. If the group
// existed before, it has vanished, which group reports once.
func (s *Source) group(st *stream) error {
	create := redis.NewCmd(s.life, "eval", groupScript, 1, st.name, s.opts.Group)
	_, err := s.read.exec(s.life, create)
	if err != nil {
		return err
	}
	if create.Err() != nil {
		return s.rest(st, refused(create.Err(), st.name))
	}
	made := create.Val() == int64(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	vanished := made && st.known
	st.grouped, st.known = true, true
	if made { // entries in hand are delivered again
		st.gone = nil
	}
	if !vanished {
		return nil
	}
	s.opts.Logger.WarnContext(s.life, "redis stream or group vanished, created again",
		slog.String("stream", st.name), slog.String("group", s.opts.Group))
	return fmt.Errorf("stream %s: %w", st.name, errVanished)
}

// rest leaves a stream alone for a while that the server refuses to this source, so that the
// others need not wait for its repair, and passes err to the next Receive. It returns errors
// that concern the whole server.
func (s *Source) rest(st *stream, err error) error {
	if broker.Classify(err).Destination == "" {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.again = time.Now().Add(longestWait)
	s.err = fmt.Errorf("redisbroker: receive for group %s: %w", s.opts.Group, err)
	s.wake()
	return nil
}

var errVanished = errors.New("the stream or its group has vanished and was created again from the beginning; if the stream was deleted, its unread messages are lost")

// fetch reads new entries of the streams, and waits for the first one.
func (s *Source) fetch(ready []*stream, room int, until time.Time) error {
	args := []any{"eval", fetchScript, 2 * len(ready)}
	for _, st := range ready {
		args = append(args, st.name, st.lease)
	}
	args = append(args, s.id, s.opts.Group, consumer, max(room/len(ready), 1))
	read := redis.NewSliceCmd(s.life, args...)
	_, err := s.read.exec(s.life, read)
	if err := failure(err, read); err != nil {
		return err
	}
	if len(read.Val()) != len(ready) {
		return fmt.Errorf("the server answered for %d of %d streams", len(read.Val()), len(ready))
	}
	some := false
	s.mu.Lock()
	for i, v := range read.Val() {
		st := ready[i]
		switch v := v.(type) {
		case []any:
			some = true
			st.last = ""
			for _, e := range v {
				s.add(st, e, 1)
			}
		case string:
			st.last = v
		case error:
			if !strings.HasPrefix(v.Error(), "NOGROUP") {
				err = v
			}
			some, st.grouped, st.last = true, false, ""
		case int64: // another source has the lease
			some = true
			s.lose(st)
		}
	}
	if some {
		s.wake()
	}
	s.mu.Unlock()
	if err != nil || some {
		return err
	}
	return s.idle(ready, until)
}

// idle waits until one of the streams has a new entry. It reads outside of the
// group: fetch reads the same entries again.
func (s *Source) idle(ready []*stream, until time.Time) error {
	block := min(time.Until(until), longestWait, s.opts.Timeout/2).Milliseconds()
	if block <= 0 {
		return nil
	}
	args := []any{"xread", "count", 1, "block", block, "streams"}
	for _, st := range ready {
		args = append(args, st.name)
	}
	for _, st := range ready {
		args = append(args, st.last)
	}
	read := redis.NewCmd(s.life, args...)
	_, err := s.read.exec(s.life, read)
	return failure(err, read)
}

// reclaim claims a page of the group's pending entries, whichever source read them.
func (s *Source) reclaim(st *stream, room int) error {
	claim := redis.NewSliceCmd(s.life, "xautoclaim", st.name, s.opts.Group, consumer, 0, st.claim, "count", max(room, 1))
	_, err := s.read.exec(s.life, claim)
	if err := failure(err, claim); err != nil {
		if isReply(err) && strings.HasPrefix(err.Error(), "NOGROUP") {
			s.mu.Lock()
			defer s.mu.Unlock()
			st.grouped = false
			return nil
		}
		if isReply(err) {
			err = s.rest(st, refused(err, st.name))
		}
		return err
	}
	v := claim.Val()
	if len(v) < 2 {
		return errors.New("the reply to XAUTOCLAIM is incomplete")
	}
	next, _ := v[0].(string)
	entries, _ := v[1].([]any)
	counts, err := s.counts(st, entries)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(v) > 2 {
		if gone, _ := v[2].([]any); len(gone) > 0 {
			s.opts.Logger.WarnContext(s.life, "redis entries trimmed before they were settled", slog.String("stream", st.name), slog.Int("entries", len(gone)))
		}
	}
	for i, e := range entries {
		s.add(st, e, counts[i])
	}
	if st.claim = next; next == "0-0" {
		st.claim, st.gone = "", nil
	}
	s.wake()
	return nil
}

// counts returns how often each entry was delivered, 1 if unknown.
func (s *Source) counts(st *stream, entries []any) ([]int, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	first, _ := entry(entries[0])
	last, _ := entry(entries[len(entries)-1])
	ask := redis.NewXPendingExtCmd(s.life, "xpending", st.name, s.opts.Group, first, last, len(entries))
	_, err := s.read.exec(s.life, ask)
	if err := failure(err, ask); err != nil {
		return nil, err
	}
	of := make(map[string]int, len(entries))
	for _, p := range ask.Val() {
		of[p.ID] = int(p.RetryCount)
	}
	counts := make([]int, len(entries))
	for i, e := range entries {
		id, _ := entry(e)
		counts[i] = max(of[id], 1)
	}
	return counts, nil
}

// entry splits an entry of a reply into its id and fields.
func entry(v any) (id string, fields []any) {
	if pair, _ := v.([]any); len(pair) == 2 {
		id, _ = pair[0].(string)
		fields, _ = pair[1].([]any)
	}
	return id, fields
}

// add puts an entry into the log, unless it is in hand. The caller holds mu.
func (s *Source) add(st *stream, v any, attempt int) {
	id, fields := entry(v)
	if id == "" || st.inHand[id] || st.acks[id] || st.gone[id] {
		return
	}
	st.inHand[id] = true
	st.pos++
	d := s.decode(st, id, fields, attempt)
	s.largest = max(s.largest, d.Message.Size())
	st.log.Add(d, st.pos)
}

func (s *Source) decode(st *stream, id string, fields []any, attempt int) broker.Delivery {
	var hs []envelope.Header
	var payload []byte
	for i := 0; i+1 < len(fields); i += 2 {
		name, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		if name == payloadField {
			payload = []byte(value)
			continue
		}
		hs = append(hs, envelope.Header{Name: name, Value: []byte(value)})
	}
	origin := st.name + "@" + id
	topic := strings.TrimPrefix(st.name, s.opts.Prefix)
	m, err := s.codec.Decode(envelope.Record{Topic: topic, Headers: hs, Payload: payload, Time: timeOf(id), Origin: "redis:" + origin})
	return broker.Delivery{Message: m, Attempt: attempt, Origin: origin, Token: place{st, id}, Err: err, Foreign: s.codec.IsForeign(hs)}
}

// place is the position of an entry.
type place struct {
	st *stream
	id string
}

// timeOf returns the time in an id such as 1700000000000-0.
func timeOf(id string) time.Time {
	ms, _, _ := strings.Cut(id, "-")
	var n int64
	for _, c := range ms {
		if c < '0' || c > '9' {
			return time.Time{}
		}
		n = n*10 + int64(c-'0')
	}
	return time.UnixMilli(n).UTC()
}
