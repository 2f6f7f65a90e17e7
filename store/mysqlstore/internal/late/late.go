// Package late is about rows that come after their numbers were given up.
package late

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Row is a row whose number was given up.
type Row struct {
	Seq  int64
	Lane store.Lane
}

// Ends returns the lowest and the highest number of some rows.
func Ends(came []Row) (first, last int64) {
	bySeq := func(a, b Row) int { return cmp.Compare(a.Seq, b.Seq) }
	return slices.MinFunc(came, bySeq).Seq, slices.MaxFunc(came, bySeq).Seq
}

// Among returns the rows whose numbers are noted. The ranges may overlap.
func Among(came []Row, noted holes.Set) []Row {
	noted = holes.Set{}.Or(noted)
	return slices.DeleteFunc(slices.Clone(came), func(r Row) bool { return !noted.Has(r.Seq) })
}

// Refusal keeps the error with which the server refused another read of such rows. The zero value
// is ready to use. It is safe for concurrent use.
type Refusal struct {
	mu  sync.Mutex
	err error
}

// Ended takes how a look for such rows has ended, and returns the error that ends the read. A refusal does not:
// other rows are read.
func (r *Refusal) Ended(ctx context.Context, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, store.ErrIdentity): // they are read again
		r.err = nil
	case ctx.Err() == nil && db.Answered(err):
		r.err = err
		return nil
	}
	return err
}

// Trouble says in words for a person what was refused last.
func (r *Refusal) Trouble() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return nil
	}
	return []string{fmt.Sprintf("messages wait whose numbers were given up: the server refused to have their lanes read again: %v", r.err)}
}
