// Package mark adds the relay's headers to messages when it sends them: skipped versions, the
// number of replays by a person, and the reference of a payload left in the database.
package mark

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/store"
)

// perMessage bounds the runs of missing versions in one message, the newest first.
const perMessage = 100

// Gaps has the skipped versions of a lane by key, ascending, as of its last view.
type Gaps map[string][]store.Gap

// NewGaps returns the gaps of a view. It copies the keys.
func NewGaps(all []store.Gap) Gaps {
	gaps := make(Gaps, len(all))
	for _, g := range all {
		g.Key = strings.Clone(g.Key)
		gaps[g.Key] = append(gaps[g.Key], g)
	}
	return gaps
}

// Joins reports whether the message's version directly follows a gap of its key.
func (g Gaps) Joins(m *postrider.Message) bool {
	return slices.ContainsFunc(g[m.Key], func(g store.Gap) bool { return g.Last == m.Version-1 })
}

// before returns the skipped versions of the message's key before it.
// It depends on recorded gaps only, so every message behind a gap announces it,
// and so does every copy from any relay: no state needs to record that a
// message has announced it.
func (g Gaps) before(m *postrider.Message) string {
	gaps := g[m.Key]
	before, _ := slices.BinarySearchFunc(gaps, m.Version, func(g store.Gap, v int64) int { return cmp.Compare(g.Last, v) })
	if before == 0 {
		return ""
	}
	missing := make([]envelope.Versions, 0, before)
	for _, g := range gaps[max(0, before-perMessage):before] {
		missing = append(missing, envelope.Versions{First: g.First, Last: g.Last})
	}
	return envelope.FormatGap(missing...)
}

// Call has the data about one call's messages that the headers need.
type Call struct {
	Gaps  Gaps
	Meta  func(j int) *store.Meta                                  // of message j
	Claim func(seq int64, m *postrider.Message) (reference string) // nil: every payload is sent
}

// Messages returns the messages of a call with the relay's headers: a message
// behind skipped dead letters names their versions, a replayed message has its number of
// replays, and a message whose payload stays in the database has its reference. The given
// slice is unchanged, because messages are parked as they were written.
func Messages(c Call, msgs []postrider.Message) []postrider.Message {
	out := msgs
	for j := range msgs {
		gap := c.Gaps.before(&msgs[j])
		meta := c.Meta(j)
		generation, ref := meta.Generation, ""
		if c.Claim != nil {
			ref = c.Claim(meta.Seq, &msgs[j])
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
