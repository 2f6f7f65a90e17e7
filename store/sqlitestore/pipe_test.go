package sqlitestore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
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
	// The commands of a finding name the pipe: the number of a dead letter means another message in main.
	if _, err := db.ExecContext(t.Context(), `INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, key, type, payload, content_type, headers, version, schema_version, created_at)
		VALUES ('audit', 1, 0, 'dead', true, 0, 1, 'rejected', 'TOO_LARGE', 'x', '', 'orders', 'k', '', x'', '', '{}', 0, 0, 0)`); err != nil {
		t.Fatal(err)
	}
	found, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"parked"}})
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Fix, "postrider --pipe audit dead show 1") {
		t.Errorf("%+v, error %v", found, err)
	}
}
