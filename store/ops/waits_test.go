package ops_test

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A lane waits for whoever must act first.
func TestWhatALaneWaitsFor(t *testing.T) {
	lane := ops.LaneStatus{Lane: 3, Owner: "a", Leased: true, Pending: 1}
	free, rests := lane, lane
	free.Owner, free.Leased = "", false
	rests.Pending = 0
	topic := store.Held{Destination: "orders", Code: "UNKNOWN_TOPIC", Error: "no such topic"}
	concerned, other := lane, ops.LaneStatus{Lane: 4, HeldTopics: []string{"mails"}}
	concerned.HeldTopics = []string{"orders"}
	mails := store.Held{Destination: "mails", Error: "gone"}
	alive := func(i ops.Instance) []ops.Instance {
		i.Alive, i.Name = true, "a"
		return []ops.Instance{{Name: "b", Alive: true, Trouble: []string{"of another relay"}}, {Name: "a", Trouble: []string{"of a dead one"}}, i}
	}
	for _, c := range []struct {
		status ops.Status
		lane   ops.LaneStatus
		want   string
	}{
		{ops.Status{Instances: alive(ops.Instance{})}, lane, ""},
		{ops.Status{Paused: true}, rests, ""},
		{ops.Status{Paused: true, Capped: true}, rests, "a person: the pipe is paused"},
		{ops.Status{Paused: true}, lane, "a person: the pipe is paused"},
		{ops.Status{Holds: []ops.Hold{{Lane: 3, Key: "k"}, {Lane: 2}}, Instances: alive(ops.Instance{})}, lane, ""},
		{ops.Status{Holds: []ops.Hold{{Lane: 3}}}, free, "a person: the lane is paused"},
		{ops.Status{}, free, "a relay: none holds the lane"},
		{
			ops.Status{Instances: alive(ops.Instance{Held: []store.Held{topic}, Trouble: []string{"destination orders is down", "2 lanes are paused: too many keys are set aside"}})},
			lane, "the destination orders: UNKNOWN_TOPIC: no such topic; 2 lanes are paused: too many keys are set aside",
		},
		{ops.Status{Lanes: []ops.LaneStatus{concerned, other}, Instances: alive(ops.Instance{Held: []store.Held{topic, mails}})}, concerned, "the destination orders: UNKNOWN_TOPIC: no such topic"},
		{ops.Status{Lanes: []ops.LaneStatus{lane, other}, Instances: alive(ops.Instance{Held: []store.Held{topic, mails}})}, lane, "the destination orders: UNKNOWN_TOPIC: no such topic"}, // a name that routes have made
		{ops.Status{Instances: alive(ops.Instance{Held: []store.Held{{Error: "refused"}}})}, lane, "the broker: refused"},
		{ops.Status{Instances: alive(ops.Instance{Trouble: []string{"sink is down"}})}, lane, "sink is down"},
	} {
		if got := c.status.WaitsFor(&c.lane); got != c.want {
			t.Errorf("%+v of %+v waits for %q, want %q", c.lane, c.status, got, c.want)
		}
	}
}

// A command names its pipe, unless that is the default one.
func TestForPipe(t *testing.T) {
	for _, c := range [][3]string{
		{"postrider dead show 1, then postrider dead retry 1", "main", "postrider dead show 1, then postrider dead retry 1"},
		{"postrider dead show 1, then postrider dead retry 1", "audit", "postrider --pipe audit dead show 1, then postrider --pipe audit dead retry 1"},
		{"postrider pipe resume audit --reason WHY", "audit", "postrider pipe resume audit --reason WHY"},
		{"postrider relay", "audit", "postrider --pipe audit relay"},
		{"postrider skip --key k", "audit", "postrider --pipe audit skip --key k"},
		{"postrider replay --since 1h, or postrider migrate", "audit", "postrider --pipe audit replay --since 1h, or postrider migrate"},
		{"postrider resume --pipe audit --endpoint e", "audit", "postrider resume --pipe audit --endpoint e"},
		{"", "audit", ""},
	} {
		if got := ops.ForPipe(c[0], c[1]); got != c[2] {
			t.Errorf("%q for pipe %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// A finding says what the trouble of a relay does to messages: only an outage uses up no attempt.
func TestFindingsNameTheTrouble(t *testing.T) {
	brake, lanes := `destination "mails" is held: it rejects all messages`, "1 lane is paused: too many keys are set aside"
	i := ops.Instance{Name: "a", Held: []store.Held{{Destination: "orders", Error: "gone: it rejects all messages"}}, Trouble: []string{lanes, brake, "odd"}}
	found := i.Findings()
	if len(found) != 4 {
		t.Fatalf("%d findings, want 4: %+v", len(found), found)
	}
	for n, want := range []struct{ why, fix string }{
		{"no attempt is used up", "sends again by itself"},
		{"lanes read no message", "dead list --all"},
		{"attempts were used up", "dead retry"},
		{"no attempt is used up", "sends again by itself"},
	} {
		if f := found[n]; !strings.Contains(f.Why, want.why) || !strings.Contains(f.Fix, want.fix) || f.Severity != ops.Critical {
			t.Errorf("%s: %s; %s: want %q and %q", f.What, f.Why, f.Fix, want.why, want.fix)
		}
	}
}
