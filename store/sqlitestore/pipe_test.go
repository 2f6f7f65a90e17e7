package sqlitestore

import (
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// A pipe that does not exist is an error, unless the relay is asked to make it.
func TestPipeThatDoesNotExist(t *testing.T) {
	db, _ := newOutbox(t, testLanes)
	req := store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute}
	s := New(db, &Options{Pipe: "audit"})
	if _, err := s.Lease(t.Context(), req); !errors.Is(err, store.ErrNoPipe) || !errors.Is(err, store.ErrUnusable) {
		t.Errorf("lease: %v", err)
	}
	if _, err := s.Office().Admin.Status(t.Context()); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("status: %v", err)
	}
	if _, err := s.Office().Finder.Key(t.Context(), "k"); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("key: %v", err)
	}
	if g, err := New(db, &Options{Pipe: "audit", MakePipe: true}).Lease(t.Context(), req); err != nil || len(g.Lanes) != testLanes {
		t.Errorf("lease of the maker: %d lanes, %v", len(g.Lanes), err)
	}
	if _, err := s.Lease(t.Context(), req); err != nil {
		t.Errorf("lease of a pipe that was made: %v", err)
	}
}
