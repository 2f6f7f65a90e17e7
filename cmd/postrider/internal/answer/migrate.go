package answer

import (
	"fmt"
	"text/tabwriter"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// Migration is what `migrate --output json` prints of each outbox.
type Migration struct {
	Relay  string `json:"relay,omitempty"` // of the file's list, whose outbox it is
	Have   int    `json:"have"`
	Want   int    `json:"want"`
	DryRun bool   `json:"dry_run,omitempty"`
	Steps  []Step `json:"steps"`

	healthy bool // there was nothing to adopt
}

// Step is one step that was made, or would be.
type Step struct {
	Version int      `json:"version"`
	Name    string   `json:"name"`
	Down    bool     `json:"down,omitempty"`
	Seconds float64  `json:"seconds"`
	Notes   []string `json:"notes,omitempty"` // steps that the operator must take, such as a grant
}

// Text writes the steps for a person.
func (m Migration) Text(w *tabwriter.Writer) {
	whose := ""
	if m.Relay != "" {
		whose = "relay " + m.Relay + ": "
	}
	switch {
	case len(m.Steps) == 0 && m.Have == 0:
		output.Row(w, whose+"nothing to do: there is no outbox")
	case len(m.Steps) == 0 && !m.healthy:
		output.Row(w, whose+fmt.Sprintf("nothing to do: the schema is at version %d", m.Have))
	}
	for _, s := range m.Steps {
		verb := "done"
		if m.DryRun {
			verb = "would do"
		}
		direction := "up"
		if s.Down {
			direction = "down"
		}
		output.Row(w, whose+verb, direction, s.Version, s.Name)
		for _, note := range s.Notes {
			output.Row(w, "  "+note)
		}
	}
	if m.healthy {
		output.Row(w, whose+"nothing to adopt: the outbox belongs to this server, and its sequence is above every row and cursor")
	}
}

// MigrationOf is the answer about the steps of a request; relay names the entry of the file's list that it is about.
func MigrationOf(relay string, have, want int, req ops.MigrateRequest, steps []ops.Step) Migration {
	answer := Migration{Relay: relay, Have: have, Want: want, DryRun: req.DryRun, Steps: []Step{}, healthy: req.Adopt}
	for _, s := range steps {
		answer.Steps = append(answer.Steps, Step{s.Version, s.Name, s.Down, s.Took.Seconds(), s.Notes})
		answer.healthy = answer.healthy && s.Name != "adopt"
	}
	return answer
}
