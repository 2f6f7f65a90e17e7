package answer

import (
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// PipesText lists the pipes.
func PipesText(w *tabwriter.Writer, found []ops.Pipe) {
	output.Row(w, "PIPE", "STATE", "RELAYS", "BEHIND", "PARKED", "SINCE", "FILTER")
	for _, p := range found {
		parked := strconv.FormatInt(p.Parked, 10)
		if p.ParkedCapped {
			parked += "+"
		}
		output.Row(w, p.Name, pipeState(p), p.Relays, p.Behind, parked, output.Stamp(p.CreatedAt), FilterText(p.Filter))
	}
}

// FilterText is a filter in words.
func FilterText(f store.Filter) string {
	if f.IsZero() {
		return "everything"
	}
	return f.String()
}

func pipeState(p ops.Pipe) string {
	switch {
	case p.Paused && p.PausedFor != "":
		return fmt.Sprintf("paused by %s: %s", p.PausedBy, p.PausedFor)
	case p.Paused:
		return "paused by " + p.PausedBy
	case p.Relays == 0:
		return "no relay runs it"
	}
	return "runs"
}
