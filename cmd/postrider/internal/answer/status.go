package answer

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Status is what `status --output json` prints: one object per look.
type Status struct {
	Time       time.Time        `json:"time"`
	Relay      string           `json:"relay,omitempty"` // the entry of the file's list
	Pipe       string           `json:"pipe"`
	Paused     bool             `json:"paused"`
	Identity   string           `json:"identity"`
	Pending    int64            `json:"pending"`
	Capped     bool             `json:"pending_is_lower_bound,omitempty"`
	LagSeconds float64          `json:"lag_seconds"`
	LagCapped  bool             `json:"lag_is_upper_bound,omitempty"`
	Delivered  int64            `json:"delivered"`
	Parked     map[string]int64 `json:"parked"`
	ParkedCap  bool             `json:"parked_is_lower_bound,omitempty"`
	Instances  []Instance       `json:"instances"`
	Lanes      []Lane           `json:"lanes"`
	Holds      []Hold           `json:"paused_parts"`
	Stops      []Stop           `json:"stopped_endpoints"`
	Alarms     []string         `json:"alarms,omitempty"`
}

// Hold is a key or a lane that a person has paused.
type Hold struct {
	Lane  int       `json:"lane"`
	Key   string    `json:"key,omitempty"`
	Since time.Time `json:"since"`
}

// Stop is an endpoint that nothing is sent to.
type Stop struct {
	Endpoint string    `json:"endpoint"`
	Since    time.Time `json:"since"`
	By       string    `json:"by"`
	Reason   string    `json:"reason"`
}

// Instance is a relay.
type Instance struct {
	Name            string   `json:"name"`
	BootID          string   `json:"boot_id"`
	Alive           bool     `json:"alive"`
	AliveForSeconds float64  `json:"alive_for_seconds"`
	Lanes           int      `json:"lanes"`
	Held            []Held   `json:"held"`    // what it sends nothing to
	Trouble         []string `json:"trouble"` // what else does not work
	Wake            string   `json:"wake,omitempty"`
}

// Held is a destination that a relay sends nothing to, and why.
type Held struct {
	Destination string    `json:"destination"` // "": all of the broker
	Since       time.Time `json:"since"`
	Code        string    `json:"code,omitempty"`
	Error       string    `json:"error"`
}

// Lane is a lane as its owner left it.
type Lane struct {
	Lane       int     `json:"lane"`
	Owner      string  `json:"owner,omitempty"`
	Leased     bool    `json:"leased"`
	Epoch      int64   `json:"epoch"`
	Pending    int64   `json:"pending"`
	LagSeconds float64 `json:"lag_seconds"`
	LagCapped  bool    `json:"lag_is_upper_bound,omitempty"`
	Delivered  int64   `json:"delivered"`
	Parked     int64   `json:"parked"`
	WaitsFor   string  `json:"waits_for,omitempty"` // the reason that nothing is sent
	Blocked    *Block  `json:"blocked,omitempty"`   // the first dead letter that holds a key of the lane
}

// Block is a dead letter that holds its key.
type Block struct {
	Seq     string `json:"seq"`
	Key     string `json:"key"`
	Waiting int64  `json:"waiting"`      // messages of the key behind it
	Keys    int    `json:"blocked_keys"` // of the lane, behind this one and others
	Do      string `json:"do"`
}

// StatusOf is the answer about s; relay names the entry of the file's list that it is about, "" for none.
func StatusOf(s ops.Status, blocks map[store.Lane]admin.Block, relay string) Status {
	answer := Status{
		Time: time.Now().UTC(), Relay: relay, Pipe: s.Pipe, Paused: s.Paused, Identity: s.Identity, Pending: s.Pending, Capped: s.Capped, ParkedCap: s.ParkedCapped,
		LagSeconds: s.Lag.Seconds(), LagCapped: s.LagCapped, Delivered: s.Delivered, Alarms: s.Alarms,
		Parked:    map[string]int64{"scheduled": 0, "retry": 0, "waiting": 0, "dead": 0}, // every state, also without records
		Instances: []Instance{}, Lanes: []Lane{}, Holds: []Hold{}, Stops: []Stop{},
	}
	maps.Copy(answer.Parked, s.Parked)
	for _, i := range s.Instances {
		one := Instance{i.Name, i.BootID, i.Alive, i.AliveFor.Seconds(), i.Lanes, []Held{}, append([]string{}, i.Trouble...), i.Wake}
		for _, h := range i.Held {
			one.Held = append(one.Held, Held{h.Destination, h.Since.UTC(), h.Code, h.Error})
		}
		answer.Instances = append(answer.Instances, one)
	}
	for _, h := range s.Holds {
		answer.Holds = append(answer.Holds, Hold{int(h.Lane), h.Key, h.Since.UTC()})
	}
	for _, s := range s.Stops {
		answer.Stops = append(answer.Stops, Stop{s.Destination, s.Since.UTC(), s.Actor, s.Reason})
	}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		lane := Lane{int(l.Lane), l.Owner, l.Leased, l.Epoch, l.Pending, l.Lag.Seconds(), l.LagCapped, l.Delivered, l.Parked, s.WaitsFor(l), nil}
		if b, ok := blocks[l.Lane]; ok {
			lane.Blocked = &Block{strconv.FormatInt(b.Seq, 10), b.Key, b.Waiting, b.Keys, b.Retry()}
		}
		answer.Lanes = append(answer.Lanes, lane)
	}
	return answer
}

// lagText is a lag, marked where it is an upper bound.
func lagText(lag time.Duration, capped bool) string {
	if capped {
		return "at most " + output.Short(lag)
	}
	return output.Short(lag)
}

// holdsShown is how many paused keys and lanes a person is shown.
const holdsShown = 10

// StatusText writes s for a person, with its lanes where they are asked for.
func StatusText(w *tabwriter.Writer, s ops.Status, blocks map[store.Lane]admin.Block, lanes bool) {
	bound := ""
	if s.Capped {
		bound = " or more"
	}
	pipe := s.Pipe
	if s.Paused {
		pipe += ", paused: `postrider pipe resume " + pipe + "`"
	}
	output.Row(w, "pipe", pipe)
	output.Row(w, "pending", fmt.Sprintf("%d%s", s.Pending, bound))
	output.Row(w, "lag", lagText(s.Lag, s.LagCapped))
	output.Row(w, "delivered", s.Delivered)
	bound = ""
	if s.ParkedCapped {
		bound = ", or more"
	}
	output.Row(w, "parked", fmt.Sprintf("scheduled %d, retry %d, waiting %d, dead %d%s",
		s.Parked["scheduled"], s.Parked["retry"], s.Parked["waiting"], s.Parked["dead"], bound))
	for i, h := range s.Holds {
		if i == holdsShown {
			output.Row(w, "paused", fmt.Sprintf("and %d more: see --output json", len(s.Holds)-i))
			break
		}
		if h.Key == "" {
			output.Row(w, "paused", fmt.Sprintf("lane %d since %s", h.Lane, output.Stamp(h.Since)))
			continue
		}
		output.Row(w, "paused", fmt.Sprintf("key %s since %s", h.Key, output.Stamp(h.Since)))
	}
	for _, s := range s.Stops {
		output.Row(w, "stopped", fmt.Sprintf("endpoint %s since %s by %s: %s", s.Destination, output.Stamp(s.Since), s.Actor, s.Reason))
	}
	for _, alarm := range s.Alarms {
		output.Row(w, "alarm", alarm)
	}
	alive := 0
	for _, i := range s.Instances {
		if i.Alive {
			alive++
			output.Row(w, "relay", fmt.Sprintf("%s, %s, lease %s", i.Name, plural.Of(i.Lanes, "lane"), output.Short(i.AliveFor)))
			if i.Wake != "" && i.Wake != "poll" {
				output.Row(w, "woken by", i.Wake)
			}
			for _, text := range i.Complaints() {
				output.Row(w, "waits for", text)
			}
		}
	}
	if alive == 0 {
		output.Row(w, "relay", "none alive: start one with `postrider relay`")
	}
	if !lanes {
		return
	}
	output.Row(w)
	output.Row(w, "LANE", "OWNER", "PENDING", "LAG", "DELIVERED", "PARKED", "EPOCH", "WAITS FOR")
	for i := range s.Lanes {
		if l := &s.Lanes[i]; l.Pending+l.Parked+l.Delivered > 0 {
			waits := s.WaitsFor(l)
			if b, ok := blocks[l.Lane]; ok {
				waits = strings.TrimPrefix(waits+"; "+b.String(), "; ")
			}
			output.Row(w, l.Lane, l.Owner, l.Pending, lagText(l.Lag, l.LagCapped), l.Delivered, l.Parked, l.Epoch, waits)
		}
	}
}
