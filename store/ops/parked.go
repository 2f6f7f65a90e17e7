package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
)

// looked is how many records of a state are looked at, the first by number, and groupsShown how
// many of their causes are reported.
const (
	looked      = 2000
	groupsShown = 10
)

// group is what failed for one cause.
type group struct {
	state       store.State
	class, code string
	count       int
	first       int64
	since       time.Time
}

// ParkedFindings are what a doctor says of the parked records of a pipe: dead letters and failing
// messages by cause, and the keys that dead letters block. It looks at a bounded number of each.
func ParkedFindings(ctx context.Context, list func(context.Context, ParkedQuery) ([]ParkedRecord, error), limits Limits) ([]Finding, error) {
	var groups []*group
	blocked, behind, bound := map[string]bool{}, 0, map[store.State]string{}
	for _, state := range []store.State{store.Dead, store.Retry, store.Waiting} {
		found, err := list(ctx, ParkedQuery{State: state, Limit: looked, Bare: true})
		if err != nil {
			return nil, err
		}
		if len(found) == looked {
			bound[state] = "at least "
		}
		for i := range found {
			r := &found[i]
			if state == store.Waiting {
				if blocked[r.Message.Key] {
					behind++
				}
				continue
			}
			if state == store.Dead && r.Captures && r.Message.Key != "" {
				blocked[r.Message.Key] = true
			}
			at := slices.IndexFunc(groups, func(g *group) bool { return g.state == state && g.class == r.Class && g.code == r.Code })
			if at < 0 {
				at, groups = len(groups), append(groups, &group{state: state, class: r.Class, code: r.Code, first: r.Seq, since: r.FirstFailed})
			}
			g := groups[at]
			if g.count++; r.FirstFailed.Before(g.since) {
				g.since = r.FirstFailed
			}
		}
	}
	why, capped := "they are not delivered", cmp.Or(bound[store.Dead], bound[store.Waiting])
	if len(blocked) > 0 {
		why = fmt.Sprintf("%s blocked by dead letters, with %s", plural.Of(len(blocked), "key is", "keys are"), plural.Of(behind, "message", "messages"))
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.count, a.count) })
	var all []Finding
	for _, g := range groups[:min(len(groups), groupsShown)] {
		reason := strings.TrimSpace(g.class + " " + g.code)
		data := map[string]any{"state": g.state.String(), "class": g.class, "code": g.code, "first": g.first, "messages": g.count}
		if g.state == store.Retry {
			age, severity := max(0, time.Since(g.since)).Round(time.Second), OK // it is tried again soon
			if age >= limits.Lag {
				severity = Warning
			}
			data["lower_bounds"] = bound[store.Retry] != ""
			all = append(all, Finding{
				Severity: severity, What: fmt.Sprintf("%s%s being retried (%s), the oldest for %s", bound[store.Retry], plural.Of(g.count, "message is", "messages are"), reason, age),
				Why: "their keys wait behind them; after the last attempt they are dead letters (an outage uses no attempt)", Fix: fmt.Sprintf("postrider dead show %d", g.first), Data: data,
			})
			continue
		}
		data["blocked_keys"], data["waiting"], data["lower_bounds"] = len(blocked), behind, capped != ""
		all = append(all, Finding{
			Severity: Warning, What: fmt.Sprintf("%s%s (%s), the first is %d", capped, plural.Of(g.count, "message is dead", "messages are dead"), reason, g.first),
			Why: why, Fix: fmt.Sprintf("postrider dead show %[1]d, repair the cause, then postrider dead retry %[1]d or postrider dead discard %[1]d --reason WHY", g.first), Data: data,
		})
	}
	if len(all) == 0 {
		all = []Finding{{What: "no message is dead, none fails"}}
	}
	return all, nil
}
