package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// instance is a relay as described by its heartbeat.
type instance struct {
	Name, Boot, Version string
	Alive               bool
	Skew                *float64 // its clock minus the database's; nil: reported by no older program
	Trouble             []string
	Held                []store.Held
	Ago                 float64 // seconds since its heartbeat
	Wake                string  // as in ops.Instance
}

func (p *patient) instances(ctx context.Context) (living, all []instance, err error) {
	all, err = rowsOf[instance](ctx, p, `SELECT w.instance, w.boot_id, w.version, `+db.Alive("w.")+`,
 extract(epoch FROM w.clock - (w.alive_until - w.ttl))::float8, w.trouble, w.held,
 extract(epoch FROM clock_timestamp() - (w.alive_until - w.ttl))::float8, '' FROM {{schema}}.relay w WHERE w.pipe = $1 ORDER BY w.instance, w.boot_id`, p.Pipe)
	for n := range all {
		all[n].Trouble, all[n].Wake = operations.SplitWake(all[n].Trouble)
	}
	for _, i := range all {
		if i.Alive {
			living = append(living, i)
		}
	}
	return living, all, err
}

// relays reports whether a relay is alive, and the complaints of living relays.
func (p *patient) relays(ctx context.Context) ([]ops.Finding, error) {
	alive, all, err := p.instances(ctx)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"alive": len(alive), "expired": len(all) - len(alive)}
	if len(alive) == 0 {
		st, known, err := operations.NewAdmin(p.Outbox, 0).StatusBy(ctx, p.tx, 1000)
		switch {
		case err != nil:
			return nil, err
		case !known:
			return []ops.Finding{{
				Severity: ops.Critical, What: fmt.Sprintf("pipe %q does not exist", p.Pipe),
				Why: "what concerns the pipe cannot be examined", Fix: "`postrider pipe list` lists those that do",
			}}, nil
		case st.Pending == 0:
			return []ops.Finding{{What: "no relay lives, and no message waits for one", Data: data}}, nil
		}
		f := ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("pipe %q has no heartbeat from a relay", p.Pipe), Data: data,
			Why: "messages are safe in the outbox, and wait",
			Fix: "start one: postrider relay; if one is running, read its log: it cannot write into the database",
		}
		if len(all) > 0 {
			last := slices.MinFunc(all, func(a, b instance) int { return cmp.Compare(a.Ago, b.Ago) })
			f.What += fmt.Sprintf("; the last one came from %s %s ago", last.Name, period(db.Seconds(last.Ago)))
		}
		return []ops.Finding{f}, nil
	}
	var found []ops.Finding
	for _, i := range alive {
		told := ops.Instance{Name: i.Name, Trouble: i.Trouble, Held: i.Held}
		found = append(found, told.Findings()...)
	}
	if len(found) == 0 {
		found = fine("%s, and none complains", plural.Of(len(alive), "relay lives", "relays live"))
		found[0].Data = data
	}
	return found, nil
}

// versions checks that all relays have one version.
func (p *patient) versions(ctx context.Context) ([]ops.Finding, error) {
	alive, _, err := p.instances(ctx)
	if err != nil {
		return nil, err
	}
	var of []string
	by := map[string]any{}
	for _, i := range alive {
		v := i.Version
		if v == "" {
			v = "unknown"
		}
		by[i.Name] = v
		if !slices.Contains(of, v) {
			of = append(of, v)
		}
	}
	if len(of) > 1 {
		return []ops.Finding{{
			Severity: ops.Warning, What: "relays of several versions live: " + strings.Join(of, ", "), Data: by,
			Why: "they work together while the schema allows it; a forgotten old relay keeps its defects",
			Fix: "finish the rolling upgrade",
		}}, nil
	}
	if len(of) == 0 {
		return fine("no relay with a heartbeat has a version"), nil
	}
	found := fine("every relay is of version %s", of[0])
	found[0].Data = by
	return found, nil
}

// clock compares clocks. Relays do not rely on them, people do.
func (p *patient) clock(ctx context.Context) ([]ops.Finding, error) {
	alive, _, err := p.instances(ctx)
	if err != nil {
		return nil, err
	}
	limit := p.req.Limits.Skew
	var found []ops.Finding
	judge := func(who string, skew time.Duration) {
		severity := over(max(skew, -skew), limit)
		if severity == ops.OK {
			return
		}
		ahead := "ahead of"
		if skew < 0 {
			ahead = "behind"
		}
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("the clock of %s is %s %s the database's", who, period(max(skew, -skew)), ahead),
			Why:  "leases do not rest on it, but logs, certificates, and what applications write as not-before do",
			Fix:  "synchronise both hosts with a time server (chronyc tracking, timedatectl)",
			Data: map[string]any{"who": who, "skew_seconds": skew.Seconds()},
		})
	}
	for _, i := range alive {
		if i.Skew != nil {
			judge("relay "+i.Name, db.Seconds(*i.Skew))
		}
	}
	before := time.Now()
	now, err := one[time.Time](ctx, p, `SELECT clock_timestamp()`)
	if err != nil {
		return nil, err
	}
	after := time.Now()
	if here := before.Add(after.Sub(before) / 2).Sub(now); after.Sub(before) < limit {
		judge("this program's host", here)
	}
	return orFine(found, "the clocks of %s and of this host are within %s of the database's", plural.Of(len(alive), "relay"), period(limit)), nil
}

// state returns the status with a low limit for the count of pending messages.
func (p *patient) state(ctx context.Context) (ops.Status, error) {
	st, _, err := operations.NewAdmin(p.Outbox, 0).StatusBy(ctx, p.tx, 1000)
	return st, err
}

// lanes finds lanes without an owner, and lanes whose owner makes no progress. A lane may be
// changing owners, so only two consecutive observations count.
func (p *patient) lanes(ctx context.Context) ([]ops.Finding, error) {
	first, err := p.state(ctx)
	if err != nil {
		return nil, err
	}
	free, stuck := p.idle(first)
	lives := slices.ContainsFunc(first.Instances, func(i ops.Instance) bool { return i.Alive })
	if !lives && first.Pending == 0 { // no message waits: see the check "relays"
		free = nil
	}
	if lives && len(free)+len(stuck) > 0 {
		wait := time.NewTimer(p.req.Again)
		defer wait.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
		}
		second, err := p.state(ctx)
		if err != nil {
			return nil, err
		}
		free2, stuck2 := p.idle(second)
		free = slices.DeleteFunc(free, func(l ops.LaneStatus) bool { return !has(free2, l) })
		stuck = slices.DeleteFunc(stuck, func(l ops.LaneStatus) bool { return !has(stuck2, l) })
	}
	var found []ops.Finding
	if len(free) > 0 {
		f := ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("%d of %d lanes have no owner: %s", len(free), len(first.Lanes), numbers(free)),
			Why: "their messages wait", Data: map[string]any{"lanes": ids(free)},
			Fix: "start more relays if these have --max-lanes or a list of lanes; otherwise look for lost leases in their logs",
		}
		if !lives {
			f.Fix = "postrider relay"
		}
		found = append(found, f)
	}
	if len(stuck) > 0 {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("%s: %s", plural.Of(len(stuck), "lane has an owner and does not move", "lanes have an owner and do not move"), numbers(stuck)),
			Why: "their messages wait although a relay renews its lease", Data: map[string]any{"lanes": ids(stuck), "owner": stuck[0].Owner},
			Fix: fmt.Sprintf("see the log of relay %s: a destination is down or held, or a call hangs. postrider status --lanes", stuck[0].Owner),
		})
	}
	if !lives && len(found) == 0 {
		return fine("no relay lives, and no message waits in a lane"), nil
	}
	return orFine(found, "every lane has an owner, and moves"), nil
}

// idle returns the lanes without an owner, and the lanes with an owner that are behind.
func (p *patient) idle(st ops.Status) (free, stuck []ops.LaneStatus) {
	for _, l := range st.Lanes {
		held := slices.ContainsFunc(st.Holds, func(h ops.Hold) bool { return h.Lane == l.Lane && h.Key == "" })
		switch {
		case held: // a person has paused it
		case !l.Leased:
			free = append(free, l)
		case l.Behind >= p.req.Limits.Lag:
			stuck = append(stuck, l)
		}
	}
	return free, stuck
}

// has reports whether a lane is unchanged: no message was settled in it.
func has(all []ops.LaneStatus, l ops.LaneStatus) bool {
	return slices.ContainsFunc(all, func(o ops.LaneStatus) bool { return o.Lane == l.Lane && o.Epoch == l.Epoch })
}

func ids(lanes []ops.LaneStatus) []int {
	var all []int
	for _, l := range lanes {
		all = append(all, int(l.Lane))
	}
	return all
}

func numbers(lanes []ops.LaneStatus) string {
	const most = 8
	var b strings.Builder
	for i, l := range lanes {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(lanes)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, l.Lane)
	}
	return b.String()
}

// lag measures the delay of the oldest message that is neither dead nor scheduled.
func (p *patient) lag(ctx context.Context) ([]ops.Finding, error) {
	st, err := p.state(ctx)
	if err != nil {
		return nil, err
	}
	severity := over(st.Lag, p.req.Limits.Lag)
	atLeast := ""
	if st.Capped {
		atLeast = "at least "
	}
	what := fmt.Sprintf("%s%s, the oldest for %s%s", atLeast, plural.Of(st.Pending, "message is pending", "messages are pending"), st.AtMost(), period(st.Lag))
	data := map[string]any{"pending": st.Pending, "lag_seconds": st.Lag.Seconds(), "lag_is_upper_bound": st.LagCapped}
	if severity == ops.OK {
		return []ops.Finding{{What: what, Data: data}}, nil
	}
	return []ops.Finding{{
		Severity: severity, What: what, Data: data, Why: "consumers work with what was true then",
		Fix: "see the checks \"relays\" and \"lanes\"; when all lanes move, writers are faster than the broker or the relay: start more relays",
	}}, nil
}

// overdue is the age above which an act that is not executed is a finding.
const overdue = time.Minute

// requests finds people's acts that no owner of a lane executes.
func (p *patient) requests(ctx context.Context) ([]ops.Finding, error) {
	type open struct {
		Count, First int64
		Age          float64
	}
	rows, err := rowsOf[open](ctx, p, `SELECT count(*), coalesce(min(id), 0), coalesce(max(extract(epoch FROM clock_timestamp() - created_at)), 0)::float8
FROM {{schema}}.request WHERE pipe = $1 AND done_at IS NULL`, p.Pipe)
	if err != nil {
		return nil, err
	}
	if age := db.Seconds(rows[0].Age); age >= overdue {
		return []ops.Finding{{
			Severity: ops.Warning, What: fmt.Sprintf("%s to be executed, one for %s", plural.Of(rows[0].Count, "act waits", "acts wait"), period(age)),
			Why: "what a person asked for is not done", Fix: "the owner of the lane does it: see the checks \"relays\" and \"lanes\"",
			Data: map[string]any{"acts": rows[0].Count, "first": rows[0].First},
		}}, nil
	}
	return fine("no act waits to be executed"), nil
}
