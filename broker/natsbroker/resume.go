package natsbroker

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// resume holds messages back while those that an earlier process left
// unsettled are missing. The server delivers those when their time is over and
// everything newer at once, which would turn a key's order round.
type resume struct {
	missing int       // unsettled messages that have not come back
	upTo    uint64    // they have stream sequences up to this
	until   time.Time // when to stop waiting: somebody else may have settled them
	early   []early
}

type early struct {
	msg  jetstream.Msg
	meta *jetstream.MsgMetadata
}

// begin notes what an earlier process left unsettled.
func (s *Source) begin(info *jetstream.ConsumerInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if info == nil || info.NumAckPending == 0 {
		return
	}
	missing := info.NumAckPending
	for _, e := range s.resume.early {
		if e.meta.Sequence.Stream <= info.Delivered.Stream {
			missing--
		}
	}
	missing -= s.log.Len() // after a consumer was found again: ours
	s.resume.missing = max(missing, 0)
	s.resume.upTo = info.Delivered.Stream
	s.resume.until = time.Now().Add(s.opts.AckWait + s.opts.AckWait/2)
	s.release(time.Now())
}

// release lets go of what was held back once nothing is missing, in the order
// of the stream. The caller holds mu.
func (s *Source) release(now time.Time) {
	r := &s.resume
	if len(r.early) == 0 || r.missing > 0 && now.Before(r.until) {
		return
	}
	r.missing = 0
	slices.SortFunc(r.early, func(a, b early) int {
		if a.meta.Sequence.Stream < b.meta.Sequence.Stream {
			return -1
		}
		return 1
	})
	for _, e := range r.early {
		s.log.Add(s.decode(e.msg, e.meta), int64(e.meta.Sequence.Stream))
	}
	r.early = nil
}
