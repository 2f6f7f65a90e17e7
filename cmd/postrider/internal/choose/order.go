// Package choose reads what people select: records, times, ranges and filters.
package choose

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store/ops"
)

// Order holds the flags of every act on many records.
type Order struct {
	Order        ops.Order
	since, until string
	versions     string
	Set, Unset   []string
	DryRun, Yes  bool
	Wait         time.Duration
}

// MatchFlags adds the flags that say which records are meant.
func (f *Order) MatchFlags(fs *pflag.FlagSet) {
	m := &f.Order.Match
	fs.StringSliceVar(&m.IDs, "id", nil, "only these message ids")
	fs.StringVar(&m.Key, "key", "", "only this key")
	fs.StringVar(&m.Type, "type", "", "only this type")
	fs.StringVar(&m.Topic, "topic", "", "only this topic")
	fs.StringVar(&f.versions, "versions", "", "only these versions: N, or FIRST-LAST")
	LaneFlag(fs, &m.Lane, "only this lane")
	fs.StringVar(&f.since, "since", "", "only messages of this time or later: RFC 3339, or an age such as 24h")
	fs.StringVar(&f.until, "until", "", "only messages of before this time: RFC 3339, or an age")
	fs.BoolVar(&m.All, "all", false, "all of them, without a filter")
}

// ErrorFlags adds the flags that look at why a record is parked.
func (f *Order) ErrorFlags(fs *pflag.FlagSet) {
	m := &f.Order.Match
	fs.StringVar(&m.Class, "class", "", "only errors of this class: rejected, failed ...")
	fs.StringVar(&m.Code, "code", "", "only errors with this code")
	fs.StringVar(&m.Error, "error", "", "only errors whose text contains this")
}

// ActFlags adds the flags that say whether, how fast and why.
func (f *Order) ActFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&f.DryRun, "dry-run", false, "count what is concerned and change nothing")
	fs.BoolVarP(&f.Yes, "yes", "y", false, "do it; without this it is only counted")
	fs.Float64Var(&f.Order.Rate, "rate", f.Order.Rate, "most records per second; 0: no limit")
	fs.StringVar(&f.Order.Reason, "reason", "", "why, for the journal")
	fs.DurationVar(&f.Wait, "wait", 10*time.Second, "how long to wait when nothing moves; 0: do not wait at all")
}

// Filtered reports whether any flag says which records are meant.
func (f *Order) Filtered(fs *pflag.FlagSet) bool {
	for _, name := range []string{"id", "key", "type", "topic", "versions", "lane", "since", "until", "all", "class", "code", "error", "set-topic", "set-header", "unset-header"} {
		if fs.Changed(name) {
			return true
		}
	}
	return false
}

// Complete turns the flags into the order.
func (f *Order) Complete(now time.Time, actor string) error {
	o := &f.Order
	o.Actor = actor
	var err error
	if o.Match.Since, err = Time("since", f.since, now); err != nil {
		return err
	}
	if o.Match.Until, err = Time("until", f.until, now); err != nil {
		return err
	}
	if o.Match.Versions, err = parseVersions(f.versions); err != nil {
		return err
	}
	for _, h := range f.Set {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return exit.Usagef("set-header %s: write NAME=VALUE", redact.Word(h))
		}
		if o.Edit.SetHeaders == nil {
			o.Edit.SetHeaders = map[string]string{}
		}
		o.Edit.SetHeaders[name] = value
	}
	o.Edit.UnsetHeaders = f.Unset
	if !f.PlanOnly() && strings.TrimSpace(o.Reason) == "" {
		return exit.Usagef("missing reason: give --reason for the journal")
	}
	probe := *o
	if f.PlanOnly() && probe.Reason == "" {
		probe.Reason = "to count"
	}
	if err := probe.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	return nil
}

// PlanOnly reports whether the records are only counted.
func (f *Order) PlanOnly() bool { return f.DryRun || !f.Yes }

// parseVersions reads one version or a range of them.
func parseVersions(text string) (v ops.Versions, err error) {
	if text == "" {
		return v, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if v.First, err = strconv.ParseInt(first, 10, 64); err == nil && isRange {
		v.Last, err = strconv.ParseInt(last, 10, 64)
	}
	if err != nil || v.First < 1 || isRange && v.Last < v.First {
		return v, exit.Usagef("versions is %s: write a number above 0, or FIRST-LAST", redact.Word(text))
	}
	return v, nil
}

// Time reads a moment, or how long ago it was.
func Time(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, exit.Usagef("%s is %s: write a time such as 2026-01-31T12:00:00Z, or an age such as 24h", name, redact.Word(text))
	}
	return at, nil
}
