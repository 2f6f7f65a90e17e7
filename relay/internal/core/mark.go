package core

import (
	"maps"
	"slices"
	"strconv"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/store"
)

// marked returns the messages of a call as they go out: one whose version is
// behind skipped dead letters names them, one that a person sent again says how
// often. The batch keeps what was written, which is what is parked.
func (l *lane) marked(c *call, msgs []postrider.Message) []postrider.Message {
	if len(l.gaps) == 0 && !c.b.parked {
		return msgs
	}
	out := msgs
	for j := range msgs {
		gap, missing := l.gapBefore(&msgs[j])
		generation := c.b.meta[c.at(j)].Generation
		if !missing && generation == 0 {
			continue
		}
		if &out[0] == &msgs[0] {
			out = slices.Clone(msgs)
		}
		headers := make(map[string]string, len(msgs[j].Headers)+2)
		maps.Copy(headers, msgs[j].Headers)
		if missing {
			headers[envelope.Gap] = envelope.FormatGap(gap.First, gap.Last)
		}
		if generation > 0 {
			headers[envelope.Generation] = strconv.Itoa(generation)
		}
		out[j].Headers = headers
	}
	return out
}

// gapBefore returns the newest versions of the message's key that will not come,
// when they lie before it. It looks at nothing but what is recorded, so every
// message behind the gap says so, and every copy, whoever sends it: nothing
// needs to remember that the next message had it.
func (l *lane) gapBefore(m *postrider.Message) (store.Gap, bool) {
	g, ok := l.gaps[m.Key]
	return g, ok && g.Last < m.Version
}

// mayLeaveGap reports whether one more key of the lane may go on behind a
// skipped version. Gaps are kept in memory and read with every lease, so their
// number has the cap of captured keys.
func (e *Engine) mayLeaveGap(l *lane, m *postrider.Message) bool {
	_, known := l.gaps[m.Key]
	return m.Version == 0 || known || len(l.gaps) < e.cfg.ParkedKeys
}
