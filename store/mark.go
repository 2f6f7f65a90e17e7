package store

import (
	"encoding/binary"
	"hash/fnv"
)

// Mark is a hash of what the settlement says. A store keeps it with the epoch
// that the settlement made, and takes a settlement for the repetition of one that
// was committed only when the marks are equal: another one under the same epoch
// comes from a caller that has lost track, and its lane is lost.
func (s *Settlement) Mark() uint64 {
	b := binary.AppendVarint(nil, s.Epoch)
	b = binary.AppendVarint(b, int64(s.Delivered))
	b = binary.AppendVarint(b, int64(len(s.Position)))
	b = append(b, s.Position...)
	for i := range s.Park {
		p := &s.Park[i]
		b = binary.AppendVarint(b, p.Seq)
		b = append(b, byte(p.State))
		b = binary.AppendVarint(b, int64(p.Attempts))
	}
	for _, list := range [][]int64{s.Unpark, s.Requests} {
		b = append(b, '|')
		for _, n := range list {
			b = binary.AppendVarint(b, n)
		}
	}
	h := fnv.New64a()
	_, _ = h.Write(b) // a hash never fails
	return h.Sum64()
}
