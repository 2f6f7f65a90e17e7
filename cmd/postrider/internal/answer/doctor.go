package answer

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
)

// DiagnosisText writes the findings for a person, with what is in order where all are asked for.
func DiagnosisText(w *tabwriter.Writer, d admin.Diagnosis, all bool) {
	for _, f := range d.Findings {
		if !all && (f.Severity == ops.OK || f.Severity == ops.Skipped) {
			continue
		}
		output.Row(w, strings.ToUpper(f.Severity.String()), f.Check, f.What)
		if f.Why != "" {
			output.Row(w, "", "why", f.Why)
		}
		if f.Fix != "" {
			output.Row(w, "", "fix", f.Fix)
		}
		for _, sql := range f.SQL {
			output.Row(w, "", "SQL", sql+";")
		}
	}
	sum := fmt.Sprintf("%d critical, %s, %d in order", d.Critical, Warnings(d.Warning), d.OK)
	if d.Skipped > 0 {
		sum += fmt.Sprintf(", %d skipped", d.Skipped)
		if !all {
			sum += " (--all names them)"
		}
	}
	output.Row(w, sum)
}

// Warnings is so many warnings in words.
func Warnings(n int) string { return plural.Of(n, "warning") }
