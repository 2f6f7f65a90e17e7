package answer

import (
	"fmt"
	"text/tabwriter"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
)

// Swept is what `prune --output json` prints: one object per sweep.
type Swept struct {
	DryRun       bool                 `json:"dry_run"`
	Rows         int64                `json:"rows"`
	Estimated    bool                 `json:"rows_are_an_estimate,omitempty"`
	PayloadBytes int64                `json:"payload_bytes"`
	Emptied      int64                `json:"emptied"`
	EmptiedBytes int64                `json:"emptied_bytes"`
	Lanes        map[store.Lane]int64 `json:"lanes,omitempty"`
	OtherRunner  string               `json:"other_runner,omitempty"` // who sweeps, when it is somebody else
	HeldBy       string               `json:"held_by,omitempty"`
	HeldRows     int64                `json:"held_rows"`
	HeldBytes    int64                `json:"held_bytes_estimate"`
	OverTheCap   bool                 `json:"over_the_cap"`
	Dropped      int                  `json:"partitions_dropped,omitempty"`
}

// Forgotten is what `prune --consumer --output json` prints.
type Forgotten struct {
	Removed int64    `json:"removed"`
	Horizon float64  `json:"horizon_seconds"`
	Why     []string `json:"horizon_why"`
}

// SweptOf is the answer about one sweep.
func SweptOf(s admin.Swept, dry bool) Swept {
	return Swept{dry, s.Rows, s.Estimated, s.Bytes, s.Emptied, s.EmptiedBytes, s.Lanes, s.Runner, s.Held.Pipe, s.Held.Rows, s.Held.Bytes, s.Held.Over, s.Tended.Dropped}
}

// SweptText writes one sweep for a person.
func SweptText(w *tabwriter.Writer, s admin.Swept, dry bool) {
	what, about := "removed", ""
	if dry { // nobody reads the payloads
		what, about = "due", "about "
	}
	if s.Runner != "" {
		output.Row(w, what, plural.Of(s.Rows, "row")+" before another process took over")
		return
	}
	if len(s.Tended.List) > 0 && s.Bytes == 0 { // tables go, nobody counts their payloads
		output.Row(w, what, fmt.Sprintf("%s with %s", plural.Of(s.Rows, "row"), plural.Of(s.Tended.Dropped, "partition")))
	} else {
		rows := ""
		if s.Estimated {
			rows = "about "
		}
		output.Row(w, what, fmt.Sprintf("%s%d rows, %s%d bytes of payload", rows, s.Rows, about, s.Bytes))
	}
	if s.Emptied > 0 {
		output.Row(w, what, fmt.Sprintf("payloads of %d rows, %d bytes", s.Emptied, s.EmptiedBytes))
	}
	if s.Tended.HeldBy != "" {
		output.Row(w, "held", "the next partition that is old enough, by "+s.Tended.HeldBy)
	}
	if s.Held.Pipe != "" {
		output.Row(w, "held", fmt.Sprintf("%d rows, about %d bytes, which pipe %s has not settled", s.Held.Rows, s.Held.Bytes, s.Held.Pipe))
	}
}

// Text writes for a person what a consumer has forgotten.
func (f Forgotten) Text(w *tabwriter.Writer) {
	output.Row(w, "removed", fmt.Sprintf("%d claims", f.Removed))
	for _, why := range f.Why {
		output.Row(w, "horizon", why)
	}
}
