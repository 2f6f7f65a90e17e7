package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// A lane at the cap of parked records tells so while a message cannot step aside, and when it
// moves on. Messages behind a captured key are parked beyond the cap.
//
// Promises: S
func TestTheCapOfParkedRecordsIsTold(t *testing.T) {
	out := true
	s := newStage(t, port.Config{ParkedKeys: 3, OutageMax: time.Second}, 1, func(m *postrider.Message, _ int) error {
		if out && m.Topic == "down" {
			return broker.Outage(errTest, "down", "down")
		}
		return nil
	})
	var told []string
	see := func() {
		for _, p := range factsOf[port.LanePaused](s.rig) {
			told = append(told, fmt.Sprint(p.Reason, " ", p.On))
		}
		s.facts = nil
	}
	all := len(s.comes(0, 0, "x@other", "hot@down"))
	for range 6 {
		all += len(s.comes(time.Second, 0, slices.Repeat([]string{"hot@down"}, 10)...))
	}
	all += len(s.comes(2*time.Second, 0, "new@down", "x@other"))
	s.until(10*time.Second, func() bool { see(); return len(told) > 0 })
	out = false
	if !s.until(time.Minute, func() bool { see(); return len(s.acked) == all && len(told) > 1 }) {
		t.Errorf("%d of %d are delivered", len(s.acked), all)
	}
	if want := "[parked records reached the cap true parked records reached the cap false]"; fmt.Sprint(told) != want {
		t.Errorf("told %v, want %s", told, want)
	}
}

// A count of parked records that reached its cap is taken anew before it has fallen to 0, or
// nobody would view the lane every two minutes.
//
// Promises: S
func TestRecordsThatWereNotCountedAreCountedLater(t *testing.T) {
	r := newRig(t, port.Config{ParkedKeys: 2})
	v := queues(map[string]int64{"a": 1}, "a")
	v.Records = 32 // of many more
	r.leadWith(lanes(1, v))
	for range 32 {
		rd := r.parkedRead()
		if rd.Reads[0].Keys == nil {
			return
		}
		r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{r.parkedBatch(store.ParkedView{}, store.Waiting, 0, "a")}})
		r.deliver()
		r.step(port.Settled{ID: take[port.Settle](r).ID})
	}
	t.Errorf("no view was asked for, and the owner knows of %d records", r.e.held[0].records)
}
