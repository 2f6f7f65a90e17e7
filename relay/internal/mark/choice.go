package mark

import (
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/store"
)

// Choice has the records of a parked read that go next.
type Choice struct {
	Msgs     []postrider.Message
	Meta     []store.Meta
	Suspects bool // they may end the process, and go alone
	Ends     int  // attempts of the only one, as a suspect; 0: they have none
}

// Choose chooses the suspects of a parked read: one that has attempts, or those of some keys
// that have none and that fit as message i beside n others. Without suspects it chooses all.
// Behind a suspect no record of its key goes. all: every record is one, but for those in
// lived, by number. The attempts of a chosen suspect are its ordinary ones.
func Choose(msgs []postrider.Message, meta []store.Meta, all bool, lived map[int64]struct{}, fits func(i, n int) bool) (c Choice) {
	if !all && !slices.ContainsFunc(meta, func(m store.Meta) bool { _, crashed := CrashedAfter(m.Code); return crashed }) {
		return Choice{Msgs: msgs, Meta: meta}
	}
	var suspects, others []int
	before, behind := sets.Keys{}, sets.Keys{} // keys with a record, with a suspect
	for i := range msgs {
		key, m := msgs[i].Key, &meta[i]
		ordinary, crashed := CrashedAfter(m.Code)
		_, outlived := lived[m.Seq]
		switch {
		case behind.Has(key):
		case !crashed && (!all || outlived):
			others = append(others, i)
		default:
			behind.Add(key)
			if before.Has(key) {
				continue
			}
			tried := crashed && m.Attempts > 0
			if n := len(suspects); n == 0 && tried {
				c.Ends = m.Attempts
			} else if tried || c.Ends > 0 || !fits(i, n) {
				continue
			}
			if crashed { // its attempts are not those of a message that fails
				m.Attempts = ordinary
			}
			suspects = append(suspects, i)
		}
		before.Add(key)
	}
	if c.Suspects = len(suspects) > 0; c.Suspects {
		others = suspects
	}
	if len(others) == len(msgs) {
		c.Msgs, c.Meta = msgs, meta
		return c
	}
	for _, i := range others {
		c.Msgs, c.Meta = append(c.Msgs, msgs[i]), append(c.Meta, meta[i])
	}
	return c
}
