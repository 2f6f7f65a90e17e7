package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
)

// Diagnosis is the result of an examination.
type Diagnosis struct {
	// Findings, the worst first, and by check within a severity.
	Findings []ops.Finding `json:"findings"`
	Worst    ops.Severity  `json:"worst"`
	Critical int           `json:"critical"`
	Warning  int           `json:"warning"`
	OK       int           `json:"ok"`
	Skipped  int           `json:"skipped"` // checks that were not made
}

// UnknownCheckError reports a name that is not a check of any doctor.
type UnknownCheckError struct{ Check string }

func (e *UnknownCheckError) Error() string {
	return fmt.Sprintf("unknown check %q: use %s", e.Check, strings.Join(checkNames(), ", "))
}

func checkNames() (names []string) {
	for _, c := range Checks() {
		names = append(names, c.Name)
	}
	return names
}

// Examine runs every doctor. The diagnosis has the findings of the others if one
// fails with an error. A requested check that no doctor makes here has
// a Skipped finding with the reason. An unknown name is an
// [*UnknownCheckError].
func Examine(ctx context.Context, req ops.ExamineRequest, doctors ...ops.Doctor) (Diagnosis, error) {
	known := checkNames()
	for _, name := range req.Only {
		if !slices.Contains(known, name) {
			return diagnose(nil), &UnknownCheckError{name}
		}
	}
	var found []ops.Finding
	for _, d := range doctors {
		more, err := d.Examine(ctx, req)
		found = append(found, more...)
		if err != nil {
			return diagnose(found), err
		}
	}
	for _, name := range req.Only {
		made := func(f ops.Finding) bool { return f.Check == name }
		if !slices.ContainsFunc(found, made) {
			found = append(found, ops.Finding{Check: name, Severity: ops.Skipped, What: inapplicable(name, found)})
		}
	}
	return diagnose(found), nil
}

// inapplicable returns why no doctor made a check, given the other findings.
func inapplicable(check string, found []ops.Finding) string {
	bad := func(f ops.Finding) bool { return f.Severity == ops.Warning || f.Severity == ops.Critical }
	switch {
	case slices.ContainsFunc(found, bad):
		return "see the other findings"
	case check == checkBroker:
		return "no broker is given: name one with --broker"
	case slices.Contains(consumerChecks(), check):
		return "no consumer keeps an inbox in this database"
	}
	return "this store lacks it, or --consumer leaves the outbox out"
}

func diagnose(found []ops.Finding) Diagnosis {
	d := Diagnosis{Findings: found}
	if d.Findings == nil {
		d.Findings = []ops.Finding{} // a list in JSON
	}
	slices.SortStableFunc(d.Findings, func(a, b ops.Finding) int { return cmp.Compare(urgency(b), urgency(a)) })
	for _, f := range d.Findings {
		if f.Severity != ops.Skipped {
			d.Worst = max(d.Worst, f.Severity)
		}
		switch f.Severity {
		case ops.Critical:
			d.Critical++
		case ops.Warning:
			d.Warning++
		case ops.OK:
			d.OK++
		case ops.Skipped:
			d.Skipped++
		}
	}
	return d
}

// urgency is how far up a finding stands: what was not examined is above what is in order.
func urgency(f ops.Finding) int {
	if f.Severity == ops.OK {
		return 0
	}
	if f.Severity == ops.Skipped {
		return 1
	}
	return 1 + int(f.Severity)
}

// Destinations returns a doctor for the broker behind a sink: it checks that the broker
// answers and has the destinations of the listed topics. A sink without Probe
// is Skipped.
func Destinations(sink broker.Sink, topics func(ctx context.Context) ([]string, error)) ops.Doctor {
	return destinations{sink, topics}
}

const checkBroker = "broker"

type destinations struct {
	sink   broker.Sink
	topics func(ctx context.Context) ([]string, error)
}

// Examine implements ops.Doctor. Errors of the broker are findings, never an error.
func (d destinations) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	const check = checkBroker
	if len(req.Only) > 0 && !slices.Contains(req.Only, check) {
		return nil, nil
	}
	info := d.sink.Info()
	name := info.Name
	if info.Probe == nil {
		return []ops.Finding{{Check: check, Severity: ops.Skipped, What: name + " cannot be checked without sending"}}, nil
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
		what, fix := "the broker does not answer", "check --broker and that it is up"
		if denied := (*broker.Error)(nil); errors.As(err, &denied) && deniedCode(denied.Code) {
			what, fix = "the broker denies access", "repair what the error names, or check the credentials of --broker"
		}
		return []ops.Finding{{
			Check: check, Severity: ops.Critical, What: fmt.Sprintf("%s: %v", what, err),
			Why: "messages wait in the outbox; no attempt is used up", Fix: fix,
		}}, ctx.Err()
	}
	var found []ops.Finding
	for i, err := range missing {
		if err == nil {
			continue
		}
		found = append(found, ops.Finding{
			Check: check, Severity: ops.Critical, What: fmt.Sprintf("topic %q has no destination: %v", topics[i], err),
			Why: "the relay holds them, and those behind them in their lanes", Fix: "create the " + cmp.Or(info.Takes, "destination") + " in " + name + ", or give the relay's user the right to see it",
			Data: map[string]any{"topic": topics[i]},
		})
	}
	if len(found) == 0 {
		found = append(found, ops.Finding{Check: check, What: fmt.Sprintf("%s answers, and has the %s of the newest messages", name, plural.Of(len(topics), "topic"))})
	}
	return append(found, d.advice(limited, topics)...), nil
}

// deniedCode reports whether a code of a broker says that it knows us and denies access, or
// rejected the login.
func deniedCode(code string) bool {
	return slices.ContainsFunc([]string{"ACCESS", "AUTH", "CREDENTIALS", "DENIED", "NOPERM", "WRONGPASS"}, func(word string) bool {
		return strings.Contains(strings.ToUpper(code), word)
	})
}

// advice returns findings about weak settings of the broker, if it can report them. An
// unreadable setting is no finding, because the destinations answer.
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
		f := ops.Finding{Check: checkBroker, Severity: ops.Warning, What: a.What, Why: a.Why, Fix: a.Fix}
		if a.Topic != "" {
			f.Data = map[string]any{"topic": a.Topic}
		}
		found = append(found, f)
	}
	return found
}
