package admin

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/store/ops"
)

// Inboxes are the inbox tables of one database, with every consumer that has its
// effects there. There need not be an outbox beside them.
type Inboxes struct {
	DB      *sql.DB // stays the caller's to close
	Dialect dialect.Dialect
	Schema  string // as in inbox.Options
}

// ConsumerStatus is what the tables know of a consumer.
type ConsumerStatus struct {
	inbox.Status
	Waiting []inbox.Gap // some of its gaps, [GapsShown] at the most
}

// GapsShown is how many gaps of a consumer are told one by one.
const GapsShown = 20

// UnknownConsumerError says that no table knows a consumer of that name: it has
// processed nothing yet, or the name is another one.
type UnknownConsumerError struct {
	Consumer string
	Known    []string
}

func (e *UnknownConsumerError) Error() string {
	known := "no consumer exists"
	if len(e.Known) > 0 {
		known = "there are " + strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("no consumer %q has processed anything here: %s", e.Consumer, known)
}

// Status asks for the consumers of these names, without names for all. One that
// is unknown is an [*UnknownConsumerError].
func (i Inboxes) Status(ctx context.Context, names ...string) ([]ConsumerStatus, error) {
	all := []ConsumerStatus{}
	err := i.read(ctx, func(conn inbox.Conn) error {
		var known []string
		there, _, err := inboxwork.Tables(ctx, conn, i.Dialect, i.Schema)
		if err == nil && len(there) > 0 {
			known, err = inboxwork.Consumers(ctx, conn, i.Dialect, i.Schema)
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				return &UnknownConsumerError{name, known}
			}
		}
		if len(names) == 0 {
			names = known
		}
		for _, name := range names {
			s, err := i.one(ctx, conn, name)
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

func (i Inboxes) one(ctx context.Context, conn inbox.Conn, name string) (s ConsumerStatus, err error) {
	in := i.of(name)
	if s.Status, err = in.Status(ctx, conn); err != nil {
		return s, err
	}
	for topic, key := "", ""; len(s.Waiting) < GapsShown; {
		g, err := in.NextGap(ctx, conn, topic, key)
		if err != nil {
			return s, err
		}
		if g == nil {
			break
		}
		topic, key = g.Topic, g.Key
		s.Waiting = append(s.Waiting, *g)
	}
	return s, nil
}

// read runs fn in a transaction that sees one state and changes nothing.
func (i Inboxes) read(ctx context.Context, fn func(inbox.Conn) error) error {
	tx, err := i.DB.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it has read only
	return fn(inbox.SQL(tx))
}

// Doctor looks for what is wrong with consumers; without names with all.
func (i Inboxes) Doctor(names ...string) ops.Doctor { return inboxDoctor{i, names} }

type inboxDoctor struct {
	Inboxes
	names []string
}

// Examine implements ops.Doctor. Without inbox tables there is one finding,
// which is OK.
func (d inboxDoctor) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	req = req.WithDefaults()
	wanted := func(check string) bool { return len(req.Only) == 0 || slices.Contains(req.Only, check) }
	if !slices.ContainsFunc([]string{checkTables, checkDead, checkGaps, checkIdle, checkClaims}, wanted) {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	found, complete, err := d.tables(limited, &req)
	if err == nil && complete {
		var all []ConsumerStatus
		if all, err = d.Status(limited, d.names...); err == nil {
			for _, f := range []func(*ops.ExamineRequest, []ConsumerStatus) []ops.Finding{deadOf, gapsOf, idleOf, claimsOf} {
				found = append(found, f(&req, all)...)
			}
		}
	}
	if unknown := (*UnknownConsumerError)(nil); errors.As(err, &unknown) {
		return found, err
	}
	if err != nil {
		found = append(found, ops.Finding{
			Check: checkTables, Severity: ops.Warning, What: fmt.Sprintf("the inbox tables cannot be read: %v", err),
			Why: "checks skipped: the inbox tables cannot be read", Fix: "GRANT SELECT on the inbox tables to the role that asks",
		})
	}
	return slices.DeleteFunc(found, func(f ops.Finding) bool { return !wanted(f.Check) }), ctx.Err()
}

// The checks, by their names.
const (
	checkTables = "consumer-tables"
	checkDead   = "consumer-dead"
	checkGaps   = "consumer-gaps"
	checkIdle   = "consumer-stalled"
	checkClaims = "consumer-retention"
)

// tables looks whether they are all there, and how large they are.
func (d inboxDoctor) tables(ctx context.Context, req *ops.ExamineRequest) (found []ops.Finding, complete bool, err error) {
	var (
		there   []inboxwork.Table
		missing []string
		version int
	)
	err = d.read(ctx, func(conn inbox.Conn) error {
		if there, missing, err = inboxwork.Tables(ctx, conn, d.Dialect, d.Schema); err == nil {
			version, err = inboxwork.Version(ctx, conn, d.Dialect, d.Schema)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, false, err
	case len(there) == 0:
		return []ops.Finding{{Check: checkTables, What: "no consumer keeps an inbox here"}}, false, nil
	case len(missing) > 0:
		return []ops.Finding{{
			Check: checkTables, Severity: ops.Critical, What: "the inbox lacks " + strings.Join(missing, ", "),
			Why: "consumers that need them process nothing", Fix: "`postrider migrate inbox` or Inbox.Migrate makes them, and so does this SQL",
			SQL: inbox.Schema(d.Dialect, d.Schema),
		}}, false, nil
	case version < inbox.SchemaVersion:
		return []ops.Finding{{
			Check: checkTables, Severity: ops.Critical,
			What: fmt.Sprintf("the inbox tables are of version %d; consumers of this program's version need %d", version, inbox.SchemaVersion),
			Why:  "such a consumer cannot note what became of a message that waits, is stale or died, and takes it back each time",
			Fix:  "`postrider migrate inbox` or Inbox.Migrate, as the owner of the tables; older consumers keep working",
		}}, true, nil
	}
	var bytes int64
	for _, t := range there {
		bytes += t.Bytes
	}
	f := ops.Finding{Check: checkTables, What: "the inbox tables are there", Data: map[string]any{"bytes": bytes}}
	if bytes > req.Limits.Inbox {
		f.Severity, f.What = ops.Warning, fmt.Sprintf("the inbox tables take %d MiB", bytes>>20)
		f.Why, f.Fix = "they grow with every message until somebody prunes them", pruneFix("NAME")
	}
	return []ops.Finding{f}, true, nil
}

// pruneFix makes an inbox of these consumers smaller, for once and for ever.
func pruneFix(consumer string) string {
	return fmt.Sprintf("`postrider prune --consumer %s --older-than 2160h`, and by a timer or Inbox.Prune from now on, with an age above what can bring a message back", consumer)
}

// perConsumer asks judge about each, and says fine when none of them is ill.
func perConsumer(check, fine string, all []ConsumerStatus, judge func(s *ConsumerStatus) (f ops.Finding, ill bool)) []ops.Finding {
	var found []ops.Finding
	for n := range all {
		if f, ill := judge(&all[n]); ill {
			f.Check = check
			if f.Data == nil {
				f.Data = map[string]any{}
			}
			f.Data["consumer"] = all[n].Consumer
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		found = []ops.Finding{{Check: check, What: fine}}
	}
	return found
}

func deadOf(_ *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkDead, "no consumer has a dead letter", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		if s.Dead == 0 {
			return f, false
		}
		name := word(s.Consumer)
		f = ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("consumer %s gave up %d messages, the oldest %s ago", name, s.Dead, rough(s.DeadAge)),
			Why:  "they have no effect",
			Fix:  fmt.Sprintf("`postrider dead list --consumer %[1]s`, repair the cause, then `postrider dead retry --consumer %[1]s --all --yes` or `postrider dead discard --consumer %[1]s --all --yes --reason WHY`", name),
			Data: map[string]any{"dead": s.Dead, "blocked_keys": s.Blocked, "age_seconds": int64(s.DeadAge.Seconds())},
		}
		if s.Blocked > 0 {
			f.Severity, f.Why = ops.Critical, fmt.Sprintf("%d keys wait behind them", s.Blocked)
		}
		return f, true
	})
}

func gapsOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkGaps, "no key waits for a version that does not come", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		gaps := s.Gaps - s.Blocked
		if gaps == 0 || s.GapAge < req.Limits.Lag {
			return f, false
		}
		name := word(s.Consumer)
		again, giveUp := "postrider replay --key KEY --versions FIRST-LAST", "postrider guard set --topic TOPIC --key KEY --version LAST"
		if s.Blocked == 0 && len(s.Waiting) > 0 { // else it is not said which of them wait behind a dead letter
			g := slices.MaxFunc(s.Waiting, func(a, b inbox.Gap) int { return cmp.Compare(a.Age, b.Age) })
			again = fmt.Sprintf("postrider replay --topic %s --key %s --versions %d-%d --yes --reason WHY", word(g.Topic), word(g.Key), g.Mark+1, g.Needs)
			giveUp = fmt.Sprintf("`postrider guard set --consumer %s --topic %s --key %s --version %d --reason WHY`, and so for each key", name, word(g.Topic), word(g.Key), g.Needs)
		}
		return ops.Finding{
			Severity: worse(s.GapAge, req.Limits.Lag),
			What:     fmt.Sprintf("consumer %s: %d keys wait for versions that have not come, the oldest for %s", name, gaps, rough(s.GapAge)),
			Why:      "their later messages are kept and have no effect",
			Fix: fmt.Sprintf("`postrider status --consumer %s` names keys and versions; have their outbox send them again (%s), or give them up: %s",
				name, again, giveUp),
			Data: map[string]any{"gaps": gaps, "age_seconds": int64(s.GapAge.Seconds())},
		}, true
	})
}

// idleOf looks for work that a living consumer would have done. A consumer with
// nothing to do cannot be told from one that does not run.
func idleOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkIdle, "nothing is due that nobody does", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		late := s.OverdueAge
		if s.Due > 0 {
			late = max(late, s.DueAge)
		}
		if late < req.Limits.Lag {
			return f, false
		}
		last := "it has never processed anything"
		if !s.LastClaim.IsZero() {
			last = fmt.Sprintf("it processed a message %s ago", rough(s.At.Sub(s.LastClaim)))
		}
		return ops.Finding{
			Severity: worse(late, req.Limits.Lag),
			What:     fmt.Sprintf("consumer %s leaves %d messages undone for up to %s that are due; %s", word(s.Consumer), s.Overdue+s.Due, rough(late), last),
			Why:      "no process of that name runs, or its broker does not deliver them again",
			Fix:      "start it, or read its log; a message that its broker has forgotten is sent again with postrider replay at its outbox",
			Data:     map[string]any{"overdue": s.Overdue, "due": s.Due, "age_seconds": int64(late.Seconds())},
		}, true
	})
}

func claimsOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkClaims, "no inbox remembers for too long", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		age := s.At.Sub(s.FirstClaim)
		if s.FirstClaim.IsZero() || age < req.Limits.Claims {
			return f, false
		}
		return ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("consumer %s remembers messages of %s ago", word(s.Consumer), rough(age)),
			Why: "nobody prunes its inbox: it grows with every message", Fix: pruneFix(word(s.Consumer)),
			Data: map[string]any{"age_seconds": int64(age.Seconds())},
		}, true
	})
}

// worse is Critical from ten times the limit on.
func worse(d, limit time.Duration) ops.Severity {
	if d >= 10*limit {
		return ops.Critical
	}
	return ops.Warning
}

func rough(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return strconv.Itoa(int(d.Hours()/24)) + " days"
	case d >= time.Minute:
		return d.Round(time.Minute).String()
	}
	return d.Round(time.Second).String()
}

// word is a consumer's name as a shell takes it.
func word(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:@/+", r))
	}) {
		return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	return name
}
