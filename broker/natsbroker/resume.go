package natsbroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// resume holds messages back while earlier ones are missing: left unsettled by
// an earlier process, given to another source, or lost on the wire. The
// server delivers those again after AckWait and all newer messages at
// once, which would reverse the order of a key.
//
// The server numbers the deliveries of a consumer. As long as the numbers have
// no gap and no other source had unsettled messages before, every unsettled message
// is here. Otherwise the server reports the number of unsettled messages, and newer ones
// are released only when all of them are here.
//
// A message in hand may be settled already: a source that was only slow may have
// settled it, and may still hold others. So messages that were
// delivered more than once are counted separately from the rest, which no other source
// can settle.
type resume struct {
	last    uint64    // number of the last delivery
	missing int       // unsettled messages that are not here, as far as known; > 0: hold newer ones
	upTo    uint64    // highest stream sequence of the missing ones
	next    time.Time // when to ask the server again
	since   time.Time // when the first message was missing, or all were given back
	early   []early
}

type early struct {
	msg  *nats.Msg
	meta *nats.MsgMetadata
}

// begin takes over the state of a consumer that was created or found.
func (s *Source) begin(info *jetstream.ConsumerInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume.last = info.Delivered.Consumer
	s.count(info, time.Now())
}

// count derives the number of missing messages from the server's. It may be too high
// while acknowledgements are in flight, but never too low. The caller holds mu.
func (s *Source) count(info *jetstream.ConsumerInfo, now time.Time) {
	r := &s.resume
	if r.missing == 0 {
		r.since = now
	}
	here, repeated := 0, 0
	for seq, again := range s.inHand {
		if seq <= info.AckFloor.Stream { // purged or expired: the server counts it as settled
			continue
		}
		here++
		if again {
			repeated++
		}
	}
	others := info.NumAckPending - info.NumRedelivered
	r.missing = max(others-(here-repeated), 0) + max(info.NumRedelivered-repeated, 0)
	r.upTo = info.Delivered.Stream
	r.last = min(r.last, info.Delivered.Consumer) // a server that has lost deliveries counts from a lower number
	r.next = now.Add(s.opts.AckWait / 8)
	if r.missing > 0 && info.NumAckPending <= here && now.Sub(r.since) > s.opts.AckWait {
		// All may be here, some delivered to another source meanwhile: given
		// back, the server delivers the unsettled ones again.
		r.since = now
		s.surrender()
		return
	}
	s.release()
}

// ask asks the server for the number of unsettled messages, if some are missing and it
// is time. The caller holds one.
func (s *Source) ask(ctx context.Context) error {
	s.mu.Lock()
	due := s.resume.missing > 0 && !time.Now().Before(s.resume.next)
	s.mu.Unlock()
	if !due || s.consumer == nil {
		return nil
	}
	info, err := s.consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("natsbroker: consumer %s of stream %s: %w", s.opts.Group, s.opts.Stream, err)
	}
	another := slices.ContainsFunc(info.PriorityGroups, func(g jetstream.PriorityGroupState) bool {
		return g.PinnedClientID != "" && g.PinnedClientID != s.puller.pin
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(info, time.Now())
	if another {
		s.surrender()
	}
	return nil
}

// arrived puts a message into the log, or holds it back. The caller holds mu.
func (s *Source) arrived(msg *nats.Msg, meta *nats.MsgMetadata) {
	r := &s.resume
	gap := meta.Sequence.Consumer != r.last+1
	r.last = max(r.last, meta.Sequence.Consumer)
	_, here := s.inHand[meta.Sequence.Stream]
	s.inHand[meta.Sequence.Stream] = meta.NumDelivered > 1
	if here {
		return // delivered again
	}
	if gap && r.missing == 0 { // at least one; the server knows the number
		r.missing, r.upTo, r.next, r.since = 1, 0, time.Time{}, time.Now()
	}
	if r.missing == 0 {
		s.log.Add(s.decode(msg, meta), int64(meta.Sequence.Stream))
		return
	}
	r.early = append(r.early, early{msg, meta})
	if meta.Sequence.Stream <= r.upTo {
		r.missing--
		s.release()
	}
}

// release releases the held messages once none is missing, in the order
// of the stream. The caller holds mu.
func (s *Source) release() {
	r := &s.resume
	if r.missing > 0 || len(r.early) == 0 {
		return
	}
	slices.SortFunc(r.early, func(a, b early) int { return cmp.Compare(a.meta.Sequence.Stream, b.meta.Sequence.Stream) })
	for _, e := range r.early {
		s.log.Add(s.decode(e.msg, e.meta), int64(e.meta.Sequence.Stream))
	}
	r.early = nil
}

// surrender gives the held messages back to the server, for instance when the consumer is
// pinned to another source: the two must not wait for each other. The caller holds mu.
func (s *Source) surrender() {
	r := &s.resume
	for _, e := range r.early {
		_ = e.msg.Nak() // if lost, AckWait has the same effect later
		delete(s.inHand, e.meta.Sequence.Stream)
	}
	if len(r.early) > 0 {
		r.early, r.missing, r.upTo = nil, 1, 0
	}
}

// unpin lets another source begin at once, if the consumer is pinned to this one. It is
// best effort: otherwise the server waits until the pin expires.
func (s *Source) unpin() {
	if s.puller.pin == "" || s.consumer == nil || !s.js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // Close takes no context
	defer cancel()
	info, err := s.consumer.Info(ctx)
	if err != nil {
		return
	}
	mine := slices.ContainsFunc(info.PriorityGroups, func(g jetstream.PriorityGroupState) bool { return g.PinnedClientID == s.puller.pin })
	if stream, err := s.js.Stream(ctx, s.opts.Stream); mine && err == nil {
		_ = stream.UnpinConsumer(ctx, s.opts.Group, group)
	}
}
