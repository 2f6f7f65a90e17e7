package answer

import (
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/causes"
	"github.com/postrider/postrider/store/ops"
)

// The commands of a pipe's dead letters name the pipe: their numbers mean other messages elsewhere.
func TestCausesNameThePipe(t *testing.T) {
	groups := causes.Of([]ops.ParkedRecord{{Seq: 7, Code: "400", Error: "it's refused", Message: postrider.Message{Topic: "orders"}}})
	for pipe, want := range map[string]string{
		"main":  `--topic orders --code 400 --error 'it'\''s refused'`,
		"audit": `--pipe audit --topic orders --code 400 --error 'it'\''s refused'`,
	} {
		all := CausesOf(groups, &ops.ParkedQuery{}, pipe)
		if len(all) != 1 || all[0].Flags != want {
			t.Fatalf("pipe %s: %+v, want the flags %s", pipe, all, want)
		}
		var b strings.Builder
		w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
		CausesText(w, all, pipe, false, 0)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if named := strings.Contains(b.String(), "postrider --pipe audit dead show 7"); named != (pipe == "audit") {
			t.Errorf("pipe %s:\n%s", pipe, b.String())
		}
	}
}
