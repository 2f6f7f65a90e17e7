package core

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/store"
)

// marked returns the messages of a call as they go out: one whose version is
// behind skipped dead letters names them, one that a person sent again says how
// often, one whose payload stays in the database says where. The batch keeps what
// was written, which is what is parked.
func (l *lane) marked(c *call, msgs []postrider.Message, claim ClaimFunc) []postrider.Message {
	if len(l.gaps) == 0 && !c.b.parked && claim == nil {
		return msgs
	}
	out := msgs
	for j := range msgs {
		gap := l.gapBefore(&msgs[j])
		meta := &c.b.meta[c.at(j)]
		generation, ref := meta.Generation, ""
		if claim != nil {
			ref = claim(l.id, meta.Seq, &msgs[j])
		}
		if gap == "" && generation == 0 && ref == "" {
			continue
		}
		if &out[0] == &msgs[0] {
			out = slices.Clone(msgs)
		}
		headers := make(map[string]string, len(msgs[j].Headers)+3)
		maps.Copy(headers, msgs[j].Headers)
		if gap != "" {
			headers[envelope.Gap] = gap
		}
		if generation > 0 {
			headers[envelope.Generation] = strconv.Itoa(generation)
		}
		if ref != "" {
			headers[envelope.DataRef] = ref
			out[j].Payload = nil
		}
		out[j].Headers = headers
	}
	return out
}

// gapBefore names the versions of the message's key before it that will not come.
// It looks at nothing but what is recorded, so every message behind a gap says so,
// and every copy, whoever sends it: nothing needs to remember that the next
// message had it.
func (l *lane) gapBefore(m *postrider.Message) string {
	gaps := l.gaps[m.Key]
	before, _ := slices.BinarySearchFunc(gaps, m.Version, func(g store.Gap, v int64) int { return cmp.Compare(g.Last, v) })
	if before == 0 {
		return ""
	}
	missing := make([]envelope.Versions, 0, before)
	for _, g := range gaps[max(0, before-gapsPerMessage):before] {
		missing = append(missing, envelope.Versions{First: g.First, Last: g.Last})
	}
	return envelope.FormatGap(missing...)
}

// mayLeaveGap reports whether a key of the lane may continue behind one more skipped
// version. Gaps are kept in memory and read with every lease, so their number
// has the cap of captured keys.
func (e *Engine) mayLeaveGap(l *lane, m *postrider.Message) bool {
	joins := slices.ContainsFunc(l.gaps[m.Key], func(g store.Gap) bool { return g.Last == m.Version-1 })
	return m.Version == 0 || joins || l.gapCount < e.cfg.ParkedKeys
}
