package records

import (
	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// Page fills a batch up to its limits.
type Page struct {
	Read  store.LaneRead
	Batch *store.Batch
	Size  int // bytes that it has
	Left  int // bytes that the batch may hold, its first record included

	Likely int // how many records it will have at most, if that is known
}

// Add reports whether the record found room; a batch takes one record whatever its size,
// unless the call is bounded.
func (p *Page) Add(m postrider.Message, meta store.Meta) bool {
	b, r := p.Batch, &p.Read
	n, size := len(b.Messages), p.Size+m.Size()
	if n == 0 && p.Likely > 0 {
		b.Messages, b.Meta = make([]postrider.Message, 0, p.Likely), make([]store.Meta, 0, p.Likely)
	}
	if n > 0 && (r.MaxRecords > 0 && n >= r.MaxRecords || r.MaxBytes > 0 && size > r.MaxBytes) || size > p.Left {
		b.More = true
		return false
	}
	b.Messages, b.Meta, p.Size = append(b.Messages, m), append(b.Meta, meta), size
	return true
}
