package sqlitestore

import (
	"errors"
	"slices"
	"testing"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A person who empties the table and its row of sqlite_sequence, or a tool that rebuilds the
// table, has numbers begin again at 1, below what relays have passed. Messages that are written
// then are sent all the same, in their order, and so are those that were set aside before.
//
// Promises: L, O
func TestNumbersThatBeginAgain(t *testing.T) {
	pool, s := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.put("k", "1", "2", "3", "4")
	b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 2}})
	if err != nil {
		t.Fatal(err)
	}
	o.done(0, store.Settlement{Position: b[0].Position, Delivered: 1, Park: []store.Park{{
		Seq: b[0].Meta[1].Seq, Message: b[0].Messages[1], State: store.Retry, Captures: true,
	}}})
	want(t, "before", o.step(), "3", "4")
	ahead := b[0].Position
	o.exec(`DELETE FROM postrider_outbox`)
	o.exec(`DELETE FROM sqlite_sequence`)
	o.put("k", "5", "6", "7")
	identity := o.g.Identity
	old := store.Settlement{BootID: "a", Epoch: o.g.Lanes[0].Epoch, Position: ahead}
	other := newOwner(t, pool, "b", nil) // finds it; the lane stays a's
	if other.g.Identity == identity || len(other.g.Lanes) > 0 {
		t.Errorf("identity %s, lanes %v", other.g.Identity, other.g.Lanes)
	}
	if _, err := o.s.Settle(t.Context(), []store.Settlement{old}); !errors.Is(err, store.ErrIdentity) {
		t.Errorf("a settlement of messages that were read before is accepted: %v", err)
	}
	o.lease()
	want(t, "set aside", o.due(), "2 retry 0")
	want(t, "after", o.step(), "5", "6", "7")
	o.put("k", "8")
	want(t, "later", o.step(), "8")
	found, err := s.Office().Journal.Entries(t.Context(), ops.JournalQuery{Act: "renumber"})
	if err != nil || len(found) != 1 || *found[0].Count != 3 {
		t.Errorf("journal: %+v, %v", found, err)
	}
}

// Where only the row of sqlite_sequence is gone, numbers continue behind the rows: nothing is moved,
// since each moved row is sent again.
func TestNumbersThatGoOn(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.put("k", "1", "2")
	want(t, "first", o.step(), "1", "2")
	identity := o.g.Identity
	o.exec(`DELETE FROM sqlite_sequence`) // SQLite counts the rows then
	o.lease()
	o.put("k", "3")
	o.exec(`DELETE FROM postrider_outbox WHERE type <> '3'`)
	o.lease()
	want(t, "then", o.step(), "3")
	if o.g.Identity != identity || !slices.Equal(entries(t, o.s, ops.JournalQuery{}), nil) {
		t.Errorf("the history of the file is another one, or %v", entries(t, o.s, ops.JournalQuery{}))
	}
}
