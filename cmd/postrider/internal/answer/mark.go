package answer

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
)

// Mark is the mark of a key in JSON.
type Mark struct {
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	Version int64     `json:"version"`
	Was     *int64    `json:"was,omitempty"` // before the command
	Updated time.Time `json:"updated,omitzero"`
}

// MarksOf is the answer about a page of marks.
func MarksOf(marks []inbox.KeyMark) []Mark {
	answers := make([]Mark, 0, len(marks))
	for _, m := range marks {
		answers = append(answers, Mark{Topic: m.Topic, Key: m.Key, Version: m.Version, Updated: m.UpdatedAt})
	}
	return answers
}

// MarksText lists a page of at most limit marks.
func MarksText(w *tabwriter.Writer, answers []Mark, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "TOPIC", "KEY", "VERSION", "UPDATED")
	for _, m := range answers {
		output.Row(w, m.Topic, m.Key, m.Version, output.Stamp(m.Updated))
	}
	if last := answers[len(answers)-1]; len(answers) == limit {
		output.Row(w)
		output.Row(w, fmt.Sprintf("there may be more: --topic %s --after %s", last.Topic, last.Key))
	}
}
