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
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
)

// Inboxes gives access to the inbox tables of one database, with all of its
// consumers. The database need not have an outbox.
type Inboxes struct {
	DB      *sql.DB // the caller closes it
	Dialect dialect.Dialect
	Schema  string // as in inbox.Options
}

// ConsumerStatus is the state of a consumer in its tables.
type ConsumerStatus struct {
	inbox.Status
	Waiting []inbox.Gap // its gaps, at most 20 of them
}

// gapsShown is the most gaps of a consumer that Status lists.
const gapsShown = 20

// UnknownConsumerError reports that no table has a consumer of this name: it has
// processed nothing yet, or the name is wrong.
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

// Status returns the status of the named consumers, without names that of all. An
// unknown name is an [*UnknownConsumerError].
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
	var behind *inboxwork.Key
	for len(s.Waiting) < gapsShown {
		g, err := in.NextGap(ctx, conn, behind)
		if err != nil {
			return s, err
		}
		if g == nil {
			break
		}
		behind = &inboxwork.Key{Topic: g.Topic, Key: g.Key}
		s.Waiting = append(s.Waiting, *g)
	}
	return s, nil
}

// read runs fn in a read-only transaction with one snapshot.
func (i Inboxes) read(ctx context.Context, fn func(inbox.Conn) error) error {
	tx, err := i.DB.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it was read-only
	return fn(inbox.SQL(tx))
}

// Doctor returns a doctor for the named consumers, without names for all.
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
	if !slices.ContainsFunc(consumerChecks(), wanted) {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	found, complete, err := d.tables(limited, &req)
	if err == nil && complete {
		var all []ConsumerStatus
		if all, err = d.Status(limited, d.names...); err == nil {
			for _, f := range []func(*ops.ExamineRequest, []ConsumerStatus) []ops.Finding{deadOf, retryingOf, gapsOf, idleOf, claimsOf} {
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
	return slices.DeleteFunc(found, func(f ops.Finding) bool {
		return !wanted(f.Check) && (complete || f.Severity == ops.OK) // why the others could not be made
	}), ctx.Err()
}

// The checks, by their names.
const (
	checkTables = "consumer-tables"
	checkDead   = "consumer-dead"
	checkRetry  = "consumer-retrying"
	checkGaps   = "consumer-gaps"
	checkIdle   = "consumer-stalled"
	checkClaims = "consumer-retention"
)

func consumerChecks() []string {
	return []string{checkTables, checkDead, checkRetry, checkGaps, checkIdle, checkClaims}
}

// tables checks that all tables exist, and their size.
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
	case 0 < version && version < inbox.SchemaVersion && younger(missing):
		return []ops.Finding{{
			Check: checkTables, Severity: ops.Critical,
			What: fmt.Sprintf("the inbox tables have version %d; consumers of this program need %d", version, inbox.SchemaVersion),
			Why:  "such a consumer cannot record the outcome of a waiting, stale or dead message, and gives it back each time",
			Fix:  "`postrider migrate inbox` or Inbox.Migrate, as the owner of the tables; older consumers keep working",
		}}, true, nil
	case len(missing) > 0:
		return []ops.Finding{{
			Check: checkTables, Severity: ops.Critical, What: "the inbox lacks " + strings.Join(missing, ", "),
			Why: "consumers that need them process nothing", Fix: "run `postrider migrate inbox`, call Inbox.Migrate, or run this SQL",
			SQL: inbox.Schema(d.Dialect, d.Schema),
		}}, false, nil
	}
	var bytes int64
	for _, t := range there {
		bytes += t.Bytes
	}
	f := ops.Finding{Check: checkTables, What: "the inbox tables exist", Data: map[string]any{"bytes": bytes}}
	if bytes > req.Limits.Inbox {
		f.Severity, f.What = ops.Warning, fmt.Sprintf("the inbox tables take %d MiB", bytes>>20)
		f.Why, f.Fix = "they grow with every message until they are pruned", pruneFix("NAME")
	}
	return []ops.Finding{f}, true, nil
}

// younger reports whether tables are missing only because the inbox is older than they are.
func younger(missing []string) bool {
	return len(missing) == 0 || len(missing) == 1 && strings.HasSuffix(missing[0], "inbox_batch")
}

// pruneFix returns the remedy for a large inbox, once and regularly.
func pruneFix(consumer string) string {
	return fmt.Sprintf("`postrider prune --consumer %s --older-than 2160h`, and by a timer or Inbox.Prune from now on, with an age above the inbox's horizon", consumer)
}

// perConsumer returns the findings of judge for all consumers, or one finding with the text fine if all is well.
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
			Severity: ops.Warning, What: fmt.Sprintf("consumer %s gave up %s, the oldest %s ago", name, plural.Of(s.Dead, "message"), rough(s.DeadAge)),
			Why:  "they have no effect",
			Fix:  fmt.Sprintf("`postrider dead list --consumer %[1]s`, repair the cause, then `postrider dead retry --consumer %[1]s --all --yes` or `postrider dead discard --consumer %[1]s --all --yes --reason WHY`", name),
			Data: map[string]any{"dead": s.Dead, "blocked_keys": s.Blocked, "age_seconds": int64(s.DeadAge.Seconds())},
		}
		if s.Blocked > 0 {
			f.Severity, f.Why = ops.Critical, plural.Of(s.Blocked, "key waits", "keys wait")+" behind them"
		}
		return f, true
	})
}

// manyTries is from how many failures on a message that is tried again is worth a warning.
const manyTries = 3

// retryingOf tells what fails and is tried again, which a person need not look at while
// it has failed a few times only.
func retryingOf(_ *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkRetry, "no consumer tries a message again", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		if s.Retrying == 0 {
			return f, false
		}
		f = ops.Finding{
			What: fmt.Sprintf("consumer %s tries %s again, one of them after %s", word(s.Consumer), plural.Of(s.Retrying, "message"), plural.Of(s.MostAttempts, "attempt")),
			Why:  "they have no effect yet, and are given up at the last attempt",
			Fix:  fmt.Sprintf("`postrider dead list --all --consumer %s` has their errors and next attempts: repair the cause, and the consumer continues by itself", word(s.Consumer)),
			Data: map[string]any{"retrying": s.Retrying, "attempts": s.MostAttempts},
		}
		if s.MostAttempts >= manyTries {
			f.Severity = ops.Warning
		}
		return f, true
	})
}

func gapsOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkGaps, "no key waits for a missing version", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		gaps := s.Gaps - s.Blocked
		if gaps == 0 {
			return f, false
		}
		name := word(s.Consumer)
		again, giveUp := "postrider replay --key KEY --versions FIRST-LAST", "postrider guard set --topic TOPIC --key KEY --version LAST"
		if s.Blocked == 0 && len(s.Waiting) > 0 { // otherwise some gap waits behind a dead letter, and it is unknown which
			g := slices.MaxFunc(s.Waiting, func(a, b inbox.Gap) int { return cmp.Compare(a.Age, b.Age) })
			again = fmt.Sprintf("postrider replay --topic %s --key %s --versions %d-%d --yes --reason WHY", word(g.Topic), word(g.Key), g.Mark+1, g.Needs)
			giveUp = fmt.Sprintf("`postrider guard set --consumer %s --topic %s --key %s --version %d --reason WHY`, and so for each key", name, word(g.Topic), word(g.Key), g.Needs)
		}
		severity := ops.OK // a short delay is usual
		if s.GapAge >= req.Limits.Lag {
			severity = worse(s.GapAge, req.Limits.Lag)
		}
		return ops.Finding{
			Severity: severity,
			What:     fmt.Sprintf("consumer %s: %s for missing versions, the oldest for %s", name, plural.Of(gaps, "key waits", "keys wait"), rough(s.GapAge)),
			Why:      "their later messages are kept and have no effect",
			Fix: fmt.Sprintf("`postrider status --consumer %s` names keys and versions; have their outbox send them again (%s), or give them up: %s",
				name, again, giveUp),
			Data: map[string]any{"gaps": gaps, "age_seconds": int64(s.GapAge.Seconds())},
		}, true
	})
}

// idleOf finds overdue work that a live consumer would have done. It cannot
// distinguish an idle consumer from a stopped one.
func idleOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkIdle, "no message is overdue", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
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
			What:     fmt.Sprintf("consumer %s has %d overdue messages, the oldest by %s; %s", word(s.Consumer), s.Overdue+s.Due, rough(late), last),
			Why:      "no process of that name runs, or its broker does not deliver them again",
			Fix:      "start it, or read its log; a message that its broker has forgotten is sent again with postrider replay at its outbox",
			Data:     map[string]any{"overdue": s.Overdue, "due": s.Due, "age_seconds": int64(late.Seconds())},
		}, true
	})
}

func claimsOf(req *ops.ExamineRequest, all []ConsumerStatus) []ops.Finding {
	return perConsumer(checkClaims, "no inbox has claims older than 90 days", all, func(s *ConsumerStatus) (f ops.Finding, ill bool) {
		age := s.At.Sub(s.FirstClaim)
		if s.FirstClaim.IsZero() || age < req.Limits.Claims {
			return f, false
		}
		return ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("consumer %s remembers messages of %s ago", word(s.Consumer), rough(age)),
			Why: "its inbox is never pruned and grows with every message", Fix: pruneFix(word(s.Consumer)),
			Data: map[string]any{"age_seconds": int64(age.Seconds())},
		}, true
	})
}

// worse returns Critical from ten times the limit on.
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

// word returns a consumer's name quoted for a shell.
func word(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:@/+", r))
	}) {
		return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	return name
}
