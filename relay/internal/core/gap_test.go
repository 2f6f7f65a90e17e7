package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

func skip(string) port.Policy { return port.Skip }

// versions numbers the messages of a batch from first on.
func versions(b store.Batch, first int64) store.Batch {
	for i := range b.Messages {
		b.Messages[i].Version = first + int64(i)
	}
	return b
}

// headers renders the relay's headers of what was sent, one word per message.
func headers(d port.Deliver) (out []string) {
	for _, m := range d.Msgs {
		out = append(out, fmt.Sprintf("v%d:%s/%s", m.Version, m.Headers[envelope.Gap], m.Headers[envelope.Generation]))
	}
	return out
}

func TestASkippedVersionIsAnnouncedOnceItIsRecorded(t *testing.T) {
	r := newRig(t, port.Config{Policy: skip})
	r.lead(1)
	b := versions(r.batch(0, "p1", "a", "a", "a", "a"), 1)
	b.Messages[3].Headers = map[string]string{"user": "kept"}
	r.read(b)
	r.deliver(nil, rejected, errNotTried, errNotTried)
	none[port.Deliver](r) // a crash now would bring version 2 back
	s := take[port.Settle](r)
	wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m2 dead #1, m3 waiting, m4 waiting")
	none[port.Read](r)
	r.step(port.Settled{ID: s.ID})
	v := store.ParkedView{Captured: []string{"a"}, HasDue: true, Records: 3, Gaps: []store.Gap{{Key: "a", First: 2, Last: 2}}}
	due := r.parkedBatch(v, store.Waiting, 0)
	due.Messages, due.Meta = b.Messages[2:], b.Meta[2:]
	r.read(due)
	d := r.deliver()
	wantEqual(t, "sent", fmt.Sprint(headers(d)), "[v3:2/ v4:2/]")
	if _, marked := b.Messages[2].Headers[envelope.Gap]; marked || d.Msgs[1].Headers["user"] != "kept" {
		t.Error("the mark is in the record, or the record's headers are gone")
	}
}

func TestATakenLaneAnnouncesWhatItsViewSays(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{Records: 3, Gaps: []store.Gap{{Key: "a", First: 2, Last: 4}, {Key: "a", First: 7, Last: 7}}}))
	b := r.batch(0, "p1", "a", "b", "a", "")
	for i, version := range []int64{5, 5, 9, 5} {
		b.Messages[i].Version = version
	}
	r.read(b)
	d := take[port.Deliver](r)
	wantEqual(t, "sent", fmt.Sprint(headers(d)), "[v5:2-4/ v5:/ v9:2-4,7/ v5:/]")
	r.step(port.Delivered{ID: d.ID, Errs: []error{unknown, nil, errNotTried, nil}})
	r.pass(time.Second)
	wantEqual(t, "sent again", fmt.Sprint(headers(take[port.Deliver](r))), "[v5:2-4/ v9:2-4,7/]")
}

func TestAParkedRecordKeepsNoMark(t *testing.T) {
	r := newRig(t, port.Config{})
	r.leadWith(lanes(1, store.ParkedView{Records: 1, Gaps: []store.Gap{{Key: "a", First: 1, Last: 1}}}))
	r.read(versions(r.batch(0, "p1", "a"), 2))
	wantEqual(t, "sent", fmt.Sprint(headers(r.deliver(failed))), "[v2:1/]")
	if park := r.settle(0).Park[0]; len(park.Message.Headers) > 0 {
		t.Errorf("parked with headers %v", park.Message.Headers)
	}
}

func TestAReplayedMessageCarriesItsGeneration(t *testing.T) {
	r := newRig(t, port.Config{})
	v := captured("a")
	v.HasDue = true
	r.leadWith(lanes(1, v))
	b := versions(r.parkedBatch(v, store.Retry, 0, "a", "a"), 3)
	b.Meta[0].Generation = 2
	r.read(b)
	wantEqual(t, "sent", fmt.Sprint(headers(r.deliver())), "[v3:/2 v4:/]")
}

// Promises: G
func TestAtTheCapOfGapsADeadLetterHoldsItsKey(t *testing.T) {
	gaps := []store.Gap{{Key: "a", First: 1, Last: 1}, {Key: "b", First: 1, Last: 1}}
	r := newRig(t, port.Config{Policy: skip, ParkedKeys: 2})
	r.leadWith(lanes(1, store.ParkedView{Records: 2, Gaps: gaps}))
	b := r.batch(0, "p1", "a", "c", "d")
	b.Messages[0].Version, b.Messages[1].Version = 2, 7
	r.read(b)
	r.deliver(rejected, rejected, rejected)
	s := take[port.Settle](r)
	wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m1 dead #1, m2 dead captures #1, m3 dead #1")
}

func TestTheViewComesBeforeNormalReadsAfterAnAct(t *testing.T) {
	r := newRig(t, port.Config{})
	due := captured("b")
	due.HasDue = true
	r.leadWith(lanes(1, due))
	r.read(r.parkedBatch(captured("b"), store.Retry, 0, "b"))
	r.deliver()
	r.step(port.Settled{ID: take[port.Settle](r).ID})
	normal := take[port.Read](r)
	wantEqual(t, "parked", normal.Reads[0].Parked, false)
	r.now += time.Second
	r.step(port.Tick{})
	request := store.Request{ID: 1, Act: store.Act{Kind: store.ActRetry, Seq: 1}}
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: r.grant(request)})
	r.step(port.ReadDone{ID: normal.ID, Err: errTest})
	r.step(port.Settled{ID: take[port.Settle](r).ID})
	r.pass(time.Second)
	wantEqual(t, "parked", take[port.Read](r).Reads[0].Parked, true)
}
