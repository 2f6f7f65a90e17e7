package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// counted is as far as this check counts the messages of one code, the blocked keys
// and the waiting messages: a million dead letters must not slow it down. codesLooked
// is the number of codes that it looks at, groupsShown the number that it reports.
const (
	counted     = 2_000
	codesLooked = 32
	groupsShown = 10
)

// The statements of the check "parked". Each reads the head of an index, then the next
// code or key behind it: BETWEEN leaves the planner no other index in that order.

// deadSQL selects the dead letters by code, and whether there are other codes. Class and
// age are those of the first.
func deadSQL() string {
	return fmt.Sprintf(`WITH RECURSIVE code AS (
  (SELECT k.code, 1 AS n FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.state = 'dead' ORDER BY k.code, k.seq LIMIT 1)
  UNION ALL
  SELECT x.code, c.n + 1 FROM code c CROSS JOIN LATERAL (SELECT k.code FROM {{schema}}.parked k
    WHERE k.pipe = $1 AND k.state = 'dead' AND k.code > c.code ORDER BY k.code, k.seq LIMIT 1) x WHERE c.n <= %[1]d)
SELECT 'dead', f.class, c.code, g.n, f.seq, coalesce(extract(epoch FROM clock_timestamp() - f.first_failed), 0)::float8, EXISTS (SELECT 1 FROM code o WHERE o.n > %[1]d) FROM code c
CROSS JOIN LATERAL (SELECT k.seq, k.class, k.first_failed FROM {{schema}}.parked k
  WHERE k.pipe = $1 AND k.state = 'dead' AND k.code BETWEEN c.code AND c.code ORDER BY k.code, k.seq LIMIT 1) f
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM {{schema}}.parked k
  WHERE k.pipe = $1 AND k.state = 'dead' AND k.code BETWEEN c.code AND c.code ORDER BY k.code, k.seq LIMIT %[2]d) x) g WHERE c.n <= %[1]d`, codesLooked, counted)
}

// retrySQL selects the first messages that fail and are tried again.
func retrySQL() string {
	return fmt.Sprintf(`SELECT 'retry', k.class, k.code, count(*), min(k.seq), coalesce(max(extract(epoch FROM clock_timestamp() - k.first_failed)), 0)::float8, false
FROM (SELECT k.seq, k.class, k.code, k.first_failed FROM {{schema}}.parked k
  WHERE k.pipe = $1 AND k.state BETWEEN 'retry' AND 'retry' ORDER BY k.state, k.seq LIMIT %d) k GROUP BY k.class, k.code`, counted)
}

// blockedSQL counts the keys of a lane with a dead letter first in their queue.
func blockedSQL() string {
	return fmt.Sprintf(`WITH RECURSIVE head AS (
  (SELECT k.lane, k.key, k.state, 1 AS n FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.key <> '' AND (k.captures OR k.state = 'waiting')
   ORDER BY k.lane, k.key, k.seq LIMIT 1)
  UNION ALL
  SELECT x.lane, x.key, x.state, h.n + 1 FROM head h CROSS JOIN LATERAL (SELECT k.lane, k.key, k.state FROM {{schema}}.parked k
    WHERE k.pipe = $1 AND k.key <> '' AND (k.captures OR k.state = 'waiting') AND (k.lane, k.key) > (h.lane, h.key)
    ORDER BY k.lane, k.key, k.seq LIMIT 1) x WHERE h.n < %d)
SELECT count(*) FILTER (WHERE state = 'dead'), count(*) FROM head`, counted)
}

// waitingSQL counts the messages that wait.
func waitingSQL() string {
	return fmt.Sprintf(`SELECT count(*) FROM (SELECT 1 FROM {{schema}}.parked k
WHERE k.pipe = $1 AND k.state BETWEEN 'waiting' AND 'waiting' ORDER BY k.state, k.seq LIMIT %d) x`, counted)
}

// parkedGroup is what failed with one code.
type parkedGroup struct {
	State, Class, Code string
	Count, First       int64
	Age                float64
	Others             bool // there are codes beyond those that were looked at
}

// atLeast is a count for people: with a + where counting stopped.
func atLeast(n int64) string {
	if n >= counted {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

// counting is atLeast with the words behind the count.
func counting(n int64, one, many string) string {
	if n >= counted {
		return atLeast(n) + " " + many
	}
	return plural.Of(n, one, many)
}

// parked reports failing messages and dead letters.
func (p *patient) parked(ctx context.Context) ([]ops.Finding, error) {
	groups, err := rowsOf[parkedGroup](ctx, p, deadSQL(), p.Pipe)
	if err != nil {
		return nil, err
	}
	retries, err := rowsOf[parkedGroup](ctx, p, retrySQL(), p.Pipe)
	if err != nil {
		return nil, err
	}
	type queues struct{ Blocked, Looked int64 }
	keys, err := rowsOf[queues](ctx, p, blockedSQL(), p.Pipe)
	if err != nil {
		return nil, err
	}
	waiting, err := one[int64](ctx, p, waitingSQL(), p.Pipe)
	if err != nil {
		return nil, err
	}
	others := len(groups) > 0 && groups[0].Others
	blocked, more := keys[0].Blocked, keys[0].Looked >= counted
	shown := fmt.Sprint(blocked)
	if more {
		shown += "+"
	}
	var retrying int64
	for _, g := range retries {
		retrying += g.Count
	}
	groups = append(groups, retries...)
	slices.SortFunc(groups, func(a, b parkedGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.First, b.First))
	})
	var found []ops.Finding
	for _, g := range groups[:min(len(groups), groupsShown)] {
		f := ops.Finding{
			Severity: ops.Warning,
			Data:     map[string]any{"state": g.State, "class": g.Class, "code": g.Code, "messages": g.Count, "first": g.First, "age_seconds": int64(g.Age)},
		}
		reason := strings.TrimSpace(g.Class + " " + g.Code)
		if g.State == "retry" {
			if db.Seconds(g.Age) < p.req.Limits.Lag {
				f.Severity = ops.OK // it is tried again soon
			}
			n := plural.Of(g.Count, "message is", "messages are")
			if retrying >= counted {
				n, f.Data["lower_bounds"] = fmt.Sprintf("%d+ messages are", g.Count), true
			}
			f.What = fmt.Sprintf("%s being retried (%s), the oldest for %s", n, reason, period(db.Seconds(g.Age)))
			f.Why, f.Fix = "their keys wait behind them; after the last attempt they are dead letters (an outage uses no attempt)", fmt.Sprintf("postrider dead show %d", g.First)
		} else {
			f.What = fmt.Sprintf("%s (%s), the first: %s, number %d", counting(g.Count, "message is dead", "messages are dead"), cmp.Or(g.Code, "no code"), g.Class, g.First)
			keys := "keys are"
			if shown == "1" {
				keys = "key is"
			}
			f.Why = fmt.Sprintf("%s %s blocked by dead letters, with %s", shown, keys, counting(waiting, "message", "messages"))
			switch {
			case blocked == 0 && more:
				f.Why = fmt.Sprintf("they are not delivered; none of the first %d keys with messages set aside is blocked by one, others may be", counted)
			case blocked == 0:
				f.Why = "they are not delivered"
			}
			f.Fix = fmt.Sprintf("postrider dead show %[1]d, repair the cause, then postrider dead retry %[1]d or postrider dead discard %[1]d --reason WHY", g.First)
			f.Data["blocked_keys"], f.Data["waiting"] = blocked, waiting
			if g.Count >= counted || more || waiting >= counted {
				f.Data["lower_bounds"] = true
			}
		}
		found = append(found, f)
	}
	if others {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("messages are dead with other codes, beyond the first %d by name", codesLooked),
			Why: "these codes were not looked at", Fix: "postrider dead list",
			Data: map[string]any{"state": "dead", "codes": codesLooked, "lower_bounds": true},
		})
	}
	return orFine(found, "no message is dead, none fails for long"), nil
}
