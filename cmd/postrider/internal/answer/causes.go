package answer

import (
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/causes"
	"github.com/postrider/postrider/internal/shell"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Cause is what dead letters have in common, in JSON.
type Cause struct {
	Letters int       `json:"letters"`
	Keys    int       `json:"blocked_keys"`
	Topic   string    `json:"topic"`
	Type    string    `json:"type"`
	Code    string    `json:"code"`
	Error   string    `json:"error"`
	Oldest  time.Time `json:"oldest,omitzero"` // when the oldest failed last
	Newest  time.Time `json:"newest,omitzero"`
	Example string    `json:"example"` // number of one of them
	Flags   string    `json:"flags"`   // of an order about them, the pipe included; "": no flags select them
}

// CausesOf are the answers about groups of a pipe's dead letters that q selects.
func CausesOf(groups []causes.Group, q *ops.ParkedQuery, pipe string) []Cause {
	all := make([]Cause, 0, len(groups))
	for i := range groups {
		g := &groups[i]
		all = append(all, Cause{
			Letters: g.N, Keys: g.Keys, Topic: g.Topic, Type: g.Type, Code: g.Code, Error: g.Error,
			Oldest: g.Oldest, Newest: g.Newest, Example: strconv.FormatInt(g.Example.Seq, 10), Flags: causeFlags(g, q, pipe),
		})
	}
	return all
}

// causeFlags are the flags of an order that select a group: a code, or a part of the error. They
// may select letters of other groups too, so the order counts first.
func causeFlags(g *causes.Group, q *ops.ParkedQuery, pipe string) string {
	if !g.Selects() {
		return ""
	}
	var words []string
	if pipe != store.DefaultPipe {
		words = append(words, "--pipe", shell.Word(pipe))
	}
	for _, f := range [][2]string{{"--topic", g.Topic}, {"--type", g.Type}, {"--key", q.Key}, {"--code", g.Code}, {"--error", strings.TrimSpace(g.Fragment)}} {
		if f[1] != "" {
			words = append(words, f[0], shell.Word(f[1]))
		}
	}
	return strings.Join(words, " ")
}

// CausesText writes the causes for a person. more: there are letters behind number last.
func CausesText(w *tabwriter.Writer, all []Cause, pipe string, more bool, last int64) {
	if len(all) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "LETTERS", "BLOCKED KEYS", "CODE", "NEWEST", "EXAMPLE", "ERROR", "FLAGS")
	for _, c := range all {
		output.Row(w, c.Letters, c.Keys, c.Code, output.Stamp(c.Newest), c.Example, c.Error, c.Flags)
	}
	output.Row(w)
	output.Row(w, ops.ForPipe("example of the first cause: postrider dead show "+all[0].Example, pipe))
	if all[0].Flags != "" {
		output.Row(w, "all of it (without --yes they are counted): postrider dead retry "+all[0].Flags)
	}
	if more {
		output.Row(w, "there may be more: --after "+strconv.FormatInt(last, 10)+", or a larger --limit")
	}
}
