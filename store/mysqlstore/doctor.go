package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/ops"
)

// patient is an outbox under examination.
type patient struct {
	*Store
	req   ops.ExamineRequest
	fits  bool // the schema is the one of this program
	maria bool

	status *ops.Status // of the pipe, read once
}

// check is one thing that the doctor looks at.
type check struct {
	name   string
	tables bool // it reads the outbox's tables, and so needs a schema that this program knows
	pipes  bool // it is made once for each pipe
	look   func(p *patient, ctx context.Context) ([]ops.Finding, error)
}

// checks in the order of their findings: what keeps a relay from working at all comes first.
func checks() []check {
	return []check{
		{name: "schema", look: (*patient).examineSchema},
		{name: "server", look: (*patient).examineServer},
		{name: "privileges", look: (*patient).examinePrivileges, tables: true},
		{name: "settings", look: (*patient).examineSettings},
		{name: "sequence", look: (*patient).examineNumbers, tables: true, pipes: true},
		{name: "indexes", look: (*patient).examineIndexes, tables: true},
		{name: "transactions", look: (*patient).examineTransactions},
		{name: "prepared", look: (*patient).examinePrepared},
		{name: "size", look: (*patient).examineSize},
		{name: "pipes", look: (*patient).examinePipes, tables: true, pipes: true},
		{name: "relays", look: (*patient).examineRelays, tables: true, pipes: true},
		{name: "clock", look: (*patient).examineClock},
		{name: "lanes", look: (*patient).examineLanes, tables: true, pipes: true},
		{name: "lag", look: (*patient).examineLag, tables: true, pipes: true},
		{name: "parked", look: (*patient).examineParked, tables: true, pipes: true},
		{name: "requests", look: (*patient).examineRequests, tables: true, pipes: true},
	}
}

// Examine implements ops.Doctor.
func (s desk) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	p := &patient{Store: s.Store, req: req.WithDefaults()}
	meet, cancel := context.WithTimeout(ctx, max(p.req.Timeout, 10*time.Second))
	defer cancel()
	have, err := s.box.SchemaVersion(meet, s.box.DB)
	if err != nil && db.Code(err) != db.ErrTableDenied {
		return nil, s.box.Wrap("examine", err)
	}
	p.fits = have == Version
	var version string
	if err := s.box.DB.QueryRowContext(meet, `SELECT VERSION()`).Scan(&version); err != nil {
		return nil, s.box.Wrap("examine", err)
	}
	p.maria = strings.Contains(version, "MariaDB")
	pipes := p.req.Pipes
	if len(pipes) == 0 && p.fits {
		if pipes, err = db.List[string](meet, s.box.DB, `SELECT DISTINCT pipe FROM postrider_progress ORDER BY pipe`); err != nil {
			return nil, s.box.Wrap("examine", err)
		}
	}
	var patients []*patient
	for _, pipe := range pipes {
		of := *p
		opts := s.opts
		opts.Pipe = pipe
		of.Store = New(s.box.DB, &opts)
		patients = append(patients, &of)
	}
	var found []ops.Finding
	for _, c := range checks() {
		wanted := len(p.req.Only) == 0 || slices.Contains(p.req.Only, c.name) || c.name == "schema" && !p.fits // why others are skipped
		if !wanted {
			continue
		}
		if c.tables && !p.fits {
			found = append(found, ops.Finding{Check: c.name, Severity: ops.Skipped, What: "the schema is not the one of this program: see the check \"schema\""})
			continue
		}
		each := []*patient{p}
		if c.pipes {
			each = patients
		}
		for _, one := range each {
			some, err := one.examine(ctx, c)
			if err != nil {
				return append(found, some...), s.box.Wrap("examine", err)
			}
			if c.pipes {
				one.sign(some, len(each) > 1)
			}
			found = append(found, some...)
		}
	}
	return found, nil
}

// sign writes the pipe into findings about it, and into their commands.
func (p *patient) sign(found []ops.Finding, several bool) {
	for i := range found {
		if several {
			found[i].What = fmt.Sprintf("pipe %q: %s", p.box.Pipe, found[i].What)
		}
		found[i].Fix = ops.ForPipe(found[i].Fix, p.box.Pipe)
		if found[i].Data == nil {
			found[i].Data = map[string]any{}
		}
		found[i].Data["pipe"] = p.box.Pipe
	}
}

// examine makes one check. Its error is that of ctx; other errors are findings.
func (p *patient) examine(ctx context.Context, c check) ([]ops.Finding, error) {
	bound := p.req.Timeout
	if c.name == "lanes" {
		bound += p.req.Again
	}
	limited, cancel := context.WithTimeout(ctx, bound)
	found, err := c.look(p, limited)
	cancel()
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	var refusal *store.UnusableError
	switch db.Code(err) {
	case 0:
		if errors.Is(err, store.ErrNoPipe) && errors.As(err, &refusal) {
			found = append(found, ops.Finding{
				Severity: ops.Critical, What: refusal.What, Why: "what concerns the pipe cannot be examined", Fix: refusal.Fix,
			})
		} else if err != nil {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("no answer: %v", err), Why: "this check was skipped", Fix: "see the other findings, then examine again",
			})
		}
	case db.ErrNeedsPrivilege, db.ErrTableDenied, db.ErrColumnDenied, db.ErrAccessDB:
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: "check skipped: missing privilege", Why: "its findings are unknown", Fix: "run the doctor as the relay's user, with the privileges of docs/mysql.md",
		})
	default:
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("the server refused a question (error %d)", db.Code(err)), Why: "this check was skipped", Fix: "see the other findings, then examine again",
		})
	}
	for i := range found {
		found[i].Check = c.name
	}
	return found, nil
}

// fine is the finding of a check that found nothing.
func fine(what string, data map[string]any) []ops.Finding {
	return []ops.Finding{{What: what, Data: data}}
}

// lookAt is the status of the pipe, read once for all checks.
func (p *patient) lookAt(ctx context.Context) (*ops.Status, error) {
	if p.status == nil {
		st, err := desk{p.Store}.Status(ctx)
		if err != nil {
			return nil, err
		}
		p.status = &st
	}
	return p.status, nil
}

func (p *patient) examineSchema(ctx context.Context) ([]ops.Finding, error) {
	have, err := p.box.SchemaVersion(ctx, p.box.DB)
	if err != nil {
		return nil, err
	}
	f := ops.Finding{Severity: ops.Critical, Why: "no relay of this version works here", Fix: "postrider migrate", Data: map[string]any{"have": have, "want": Version}}
	switch {
	case have == Version:
		return fine(fmt.Sprintf("the schema is at version %d, as this program needs it", have), nil), nil
	case have == 0:
		f.What = "the database has no outbox"
	case have < Version:
		f.What = fmt.Sprintf("the schema is at version %d, this program needs %d", have, Version)
	default:
		f.What, f.Fix = fmt.Sprintf("the schema is at version %d, newer than the %d this program knows", have, Version), "upgrade this program"
	}
	return []ops.Finding{f}, nil
}

// examineNumbers looks at what a reader rests on: numbers that only grow, and few of them open.
func (p *patient) examineNumbers(ctx context.Context) ([]ops.Finding, error) {
	st, err := p.lookAt(ctx)
	if err != nil {
		return nil, err
	}
	top, reset, err := p.setBack(ctx, p.box.DB)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	var refusal *store.UnusableError
	if reset && errors.As(resetError(top), &refusal) {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: refusal.What, Why: "relays refuse to work", Fix: refusal.Fix, Data: map[string]any{"passed": top},
		})
	}
	for _, alarm := range st.Alarms {
		if reset && strings.Contains(alarm, "began again") {
			continue
		}
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: alarm, Why: "messages wait, or were sent behind later ones of their keys", Fix: "see the check \"transactions\", and docs/mysql.md on order and long statements",
		})
	}
	if len(found) == 0 {
		found = fine("numbers grow, and few are open", nil)
	}
	return found, nil
}

func (p *patient) examineRelays(ctx context.Context) ([]ops.Finding, error) {
	st, err := p.lookAt(ctx)
	if err != nil {
		return nil, err
	}
	alive := living(st)
	data := map[string]any{"alive": alive, "pending": st.Pending}
	if alive == 0 && st.Pending == 0 {
		return fine("no relay lives, and no message waits for one", data), nil
	}
	if alive == 0 {
		return []ops.Finding{{
			Severity: ops.Critical, What: fmt.Sprintf("pipe %q has no heartbeat from a relay", p.box.Pipe), Data: data,
			Why: "messages are safe in the outbox, and wait", Fix: "start one: postrider relay; if one is running, read its log: it cannot write into the database",
		}}, nil
	}
	var found []ops.Finding
	for i := range st.Instances {
		if one := &st.Instances[i]; one.Alive {
			found = append(found, one.Findings()...)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	return fine(plural.Of(alive, "relay lives", "relays live"), data), nil
}

func living(st *ops.Status) (n int) {
	for i := range st.Instances {
		if st.Instances[i].Alive {
			n++
		}
	}
	return n
}

func (p *patient) examineClock(ctx context.Context) ([]ops.Finding, error) {
	before := time.Now()
	at, err := p.box.Clock(ctx, p.box.DB)
	if err != nil {
		return nil, err
	}
	took := time.Since(before)
	skew := time.UnixMicro(at).Sub(before.Add(took / 2)).Abs()
	severity := worse(skew-took, p.req.Limits.Skew)
	data := map[string]any{"seconds": skew.Seconds()}
	if severity == ops.OK {
		return fine("the clocks of this host and the server agree", data), nil
	}
	return []ops.Finding{{
		Severity: severity, What: fmt.Sprintf("the clocks of this host and the server differ by %s", skew.Round(time.Millisecond)), Data: data,
		Why: "the end of statements is judged by the server's clock, and a step back of it costs the order of messages",
		Fix: "synchronise both hosts with a time server (chronyc tracking, timedatectl), and slew the server's clock",
	}}, nil
}

// worse is how bad a value above a limit is.
func worse(value, limit time.Duration) ops.Severity {
	switch {
	case value >= 10*limit:
		return ops.Critical
	case value >= limit:
		return ops.Warning
	}
	return ops.OK
}

// examineLanes looks for lanes without an owner, which is usual for a moment while relays
// come and go.
func (p *patient) examineLanes(ctx context.Context) ([]ops.Finding, error) {
	first, err := p.lookAt(ctx)
	if err != nil {
		return nil, err
	}
	if free := freeLanes(first); living(first) > 0 && len(free) > 0 {
		again := time.NewTimer(p.req.Again)
		defer again.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-again.C:
		}
		second, err := desk{p.Store}.Status(ctx)
		if err != nil {
			return nil, err
		}
		still := slices.DeleteFunc(freeLanes(&second), func(l store.Lane) bool { return !slices.Contains(free, l) })
		if len(still) > 0 {
			return []ops.Finding{{
				Severity: ops.Critical, What: fmt.Sprintf("%d of %d lanes have no owner, the first is %d", len(still), len(first.Lanes), still[0]),
				Why: "their messages wait", Data: map[string]any{"lanes": still},
				Fix: "start more relays if these have --max-lanes or a list of lanes; otherwise look for lost leases in their logs",
			}}, nil
		}
	}
	return fine(fmt.Sprintf("of %d lanes each has an owner, or waits for a relay", len(first.Lanes)), nil), nil
}

func freeLanes(st *ops.Status) (free []store.Lane) {
	for i := range st.Lanes {
		if l := &st.Lanes[i]; !l.Leased {
			free = append(free, l.Lane)
		}
	}
	return free
}

func (p *patient) examineLag(ctx context.Context) ([]ops.Finding, error) {
	st, err := p.lookAt(ctx)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s, the oldest for %s", plural.Of(st.Pending, "message is pending", "messages are pending"), st.Lag.Round(time.Second))
	data := map[string]any{"pending": st.Pending, "lag_seconds": st.Lag.Seconds()}
	severity := worse(st.Lag, p.req.Limits.Lag)
	if severity == ops.OK {
		return fine(what, data), nil
	}
	return []ops.Finding{{
		Severity: severity, What: what, Data: data, Why: "consumers work with what was true then",
		Fix: "see the checks \"relays\" and \"lanes\"; when all lanes move, writers are faster than the broker or the relay: start more relays",
	}}, nil
}

func (p *patient) examineParked(ctx context.Context) ([]ops.Finding, error) {
	return ops.ParkedFindings(ctx, operations.Parked{Outbox: p.box}.List, p.req.Limits)
}

// idleAct is how long an act of a person may wait for the owner of its lane.
const idleAct = time.Minute

func (p *patient) examineRequests(ctx context.Context) ([]ops.Finding, error) {
	var n, age int64
	err := p.box.DB.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(`+db.Now+` - MIN(created_at), 0) FROM postrider_act WHERE pipe = ? AND done_at IS NULL`, p.box.Pipe).Scan(&n, &age)
	if err != nil {
		return nil, err
	}
	if waited := time.Duration(age) * time.Microsecond; waited >= idleAct {
		return []ops.Finding{{
			Severity: ops.Warning, What: fmt.Sprintf("%s to be executed, one for %s", plural.Of(n, "act waits", "acts wait"), waited.Round(time.Second)), Data: map[string]any{"open": n},
			Why: "what a person asked for is not done", Fix: "the owner of the lane does it: see the checks \"relays\" and \"lanes\"",
		}}, nil
	}
	return fine(plural.Of(n, "act waits", "acts wait")+" to be executed", map[string]any{"open": n}), nil
}
