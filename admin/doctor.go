package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store/ops"
)

// Diagnosis is what an examination found.
type Diagnosis struct {
	// Findings, the worst first, and by check within a severity.
	Findings []ops.Finding `json:"findings"`
	Worst    ops.Severity  `json:"worst"`
	Critical int           `json:"critical"`
	Warning  int           `json:"warning"`
	OK       int           `json:"ok"`
}

// Examine asks every doctor. The diagnosis holds what was found also when one
// fails with an error.
func Examine(ctx context.Context, req ops.ExamineRequest, doctors ...ops.Doctor) (Diagnosis, error) {
	var found []ops.Finding
	for _, d := range doctors {
		more, err := d.Examine(ctx, req)
		found = append(found, more...)
		if err != nil {
			return diagnose(found), err
		}
	}
	return diagnose(found), nil
}

func diagnose(found []ops.Finding) Diagnosis {
	d := Diagnosis{Findings: found}
	if d.Findings == nil {
		d.Findings = []ops.Finding{} // a list in JSON
	}
	slices.SortStableFunc(d.Findings, func(a, b ops.Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	for _, f := range d.Findings {
		d.Worst = max(d.Worst, f.Severity)
		switch f.Severity {
		case ops.Critical:
			d.Critical++
		case ops.Warning:
			d.Warning++
		case ops.OK:
			d.OK++
		}
	}
	return d
}

// Destinations is a doctor for the broker behind a sink: whether it answers, and
// has the topics that messages go to, which topics lists. A sink that cannot be
// asked is OK.
func Destinations(sink broker.Sink, topics func(ctx context.Context) ([]string, error)) ops.Doctor {
	return destinations{sink, topics}
}

type destinations struct {
	sink   broker.Sink
	topics func(ctx context.Context) ([]string, error)
}

// Examine implements ops.Doctor. What the broker says is a finding, never an error.
func (d destinations) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	const check = "broker"
	if len(req.Only) > 0 && !slices.Contains(req.Only, check) {
		return nil, nil
	}
	info := d.sink.Info()
	name := info.Name
	if info.Probe == nil {
		return []ops.Finding{{Check: check, What: name + " cannot be asked without sending"}}, nil
	}
	limited, cancel := context.WithTimeout(ctx, req.WithDefaults().Timeout)
	defer cancel()
	topics, err := d.topics(limited)
	if err != nil {
		return []ops.Finding{{
			Check: check, Severity: ops.Warning, What: fmt.Sprintf("the topics in use cannot be read: %v", err),
			Why: "this check was skipped", Fix: "see the other findings",
		}}, nil
	}
	missing, err := info.Probe(limited, topics)
	if err != nil {
		return []ops.Finding{{
			Check: check, Severity: ops.Critical, What: fmt.Sprintf("the broker does not answer: %v", err),
			Why: "messages wait in the outbox; no attempt is used up", Fix: "check --broker and that it is up",
		}}, ctx.Err()
	}
	var found []ops.Finding
	for i, err := range missing {
		if err == nil {
			continue
		}
		found = append(found, ops.Finding{
			Check: check, Severity: ops.Critical, What: fmt.Sprintf("messages of topic %q have nowhere to go: %v", topics[i], err),
			Why: "the relay holds them, and those behind them in their lanes", Fix: "make the topic or stream in " + name + ", or give the relay's user the right to see it",
			Data: map[string]any{"topic": topics[i]},
		})
	}
	if len(found) == 0 {
		found = append(found, ops.Finding{Check: check, What: fmt.Sprintf("%s answers, and has the %d topics of the newest messages", name, len(topics))})
	}
	return append(found, d.advice(limited, topics)...), nil
}

// advice is what weakens the broker, where it can be asked. What cannot be read
// is no finding: the destinations answer.
func (d destinations) advice(ctx context.Context, topics []string) (found []ops.Finding) {
	advise := d.sink.Info().Advise
	if advise == nil {
		return nil
	}
	all, err := advise(ctx, topics)
	if err != nil && len(all) == 0 {
		return nil
	}
	for _, a := range all {
		f := ops.Finding{Check: "broker", Severity: ops.Warning, What: a.What, Why: a.Why, Fix: a.Fix}
		if a.Topic != "" {
			f.Data = map[string]any{"topic": a.Topic}
		}
		found = append(found, f)
	}
	return found
}
