package answer

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
)

// Partitions is what `partitions --output json` prints.
type Partitions struct {
	Partitioned bool            `json:"partitioned"`
	Current     int64           `json:"current,omitempty"`
	Ahead       int             `json:"ahead,omitempty"`
	Room        int64           `json:"room,string,omitempty"`
	Alarm       string          `json:"alarm,omitempty"`
	Partitions  []ops.Partition `json:"partitions"`
	Tended      *ops.Tended     `json:"tended,omitempty"`
}

// PartitionsOf is the answer about p; done is what tending them did, nil where they were only looked at.
func PartitionsOf(p ops.Partitions, done *ops.Tended) Partitions {
	answer := Partitions{
		Partitioned: len(p.List) > 0, Current: p.Current, Ahead: p.Ahead, Room: p.Room, Alarm: p.Alarm(), Partitions: p.List, Tended: done,
	}
	if answer.Partitions == nil {
		answer.Partitions = []ops.Partition{}
	}
	return answer
}

// Text writes the partitions for a person.
func (p Partitions) Text(w *tabwriter.Writer) {
	if !p.Partitioned {
		output.Row(w, "the outbox is a plain table; `postrider migrate --partition` changes that")
		return
	}
	if p.Tended != nil {
		tendedText(w, p.Tended)
	}
	output.Row(w, "PARTITION", "STATE", "BYTES", "ROWS (ESTIMATE)", "OPENED", "CLOSED")
	for _, one := range p.Partitions {
		rows := "unknown"
		if one.Rows >= 0 {
			rows = fmt.Sprintf("about %d", one.Rows)
		}
		output.Row(w, one.Name, partitionState(one, p.Current), one.Bytes, rows, stampOr(one.OpenedAt), stampOr(one.ClosedAt))
	}
	if p.Alarm != "" {
		output.Row(w, "ALARM: "+p.Alarm)
	}
}

func tendedText(w *tabwriter.Writer, done *ops.Tended) {
	output.Row(w, fmt.Sprintf("made %d, dropped %d with %s", done.Made, done.Dropped, plural.Of(done.Rows, "row")))
	if done.Rolled {
		output.Row(w, "writers moved on to the next partition")
	}
	if done.HeldBy != "" {
		output.Row(w, fmt.Sprintf("the oldest one is held by %s", done.HeldBy))
	}
	if done.Busy {
		output.Row(w, "something else is at work, or a transaction that wrote is open: try again later")
	}
}

func partitionState(p ops.Partition, current int64) string {
	switch {
	case p.Number > current:
		return "ahead"
	case p.Number == current:
		return "in use"
	case p.ClosedAt.IsZero():
		return "empty"
	}
	return "closed"
}

func stampOr(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return output.Stamp(t)
}
