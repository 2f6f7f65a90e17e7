package admin

import (
	"cmp"
	"context"
	"slices"

	"github.com/postrider/postrider/store"
)

// Diagnosis is what an examination found.
type Diagnosis struct {
	// Findings, the worst first, and by check within a severity.
	Findings []store.Finding `json:"findings"`
	Worst    store.Severity  `json:"worst"`
	Critical int             `json:"critical"`
	Warning  int             `json:"warning"`
	OK       int             `json:"ok"`
}

// Examine asks every doctor. The diagnosis holds what was found also when one
// fails with an error.
func Examine(ctx context.Context, req store.ExamineRequest, doctors ...store.Doctor) (Diagnosis, error) {
	var found []store.Finding
	for _, d := range doctors {
		more, err := d.Examine(ctx, req)
		found = append(found, more...)
		if err != nil {
			return diagnose(found), err
		}
	}
	return diagnose(found), nil
}

func diagnose(found []store.Finding) Diagnosis {
	d := Diagnosis{Findings: found}
	if d.Findings == nil {
		d.Findings = []store.Finding{} // a list in JSON
	}
	slices.SortStableFunc(d.Findings, func(a, b store.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	for _, f := range d.Findings {
		d.Worst = max(d.Worst, f.Severity)
		switch f.Severity {
		case store.Critical:
			d.Critical++
		case store.Warning:
			d.Warning++
		case store.OK:
			d.OK++
		}
	}
	return d
}
