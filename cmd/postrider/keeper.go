package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// keeperSettings are those of retention and of the books.
type keeperSettings struct {
	retention  string // of the relay: a duration or "off"
	olderThan  time.Duration
	maxBytes   byteSize
	holdRows   int64
	holdBytes  byteSize
	rate       int
	archive    string
	payloads   time.Duration
	keepDead   time.Duration
	auditEvery time.Duration
}

// limitFlags declares what relay and prune have in common, under the names given.
func (k *keeperSettings) limitFlags(fs *pflag.FlagSet, maxBytes, rate, archive string) {
	fs.Var(&k.maxBytes, maxBytes, "remove settled rows before their age while the outbox takes more than this, such as 50GB")
	fs.Int64Var(&k.holdRows, "hold-max-rows", 10_000_000, "rows that one pipe may hold back before it is an alarm; 0: no alarm")
	fs.Var(&k.holdBytes, "hold-max-bytes", "the same by size")
	fs.IntVar(&k.rate, rate, 10_000, "most rows removed per second")
	fs.StringVar(&k.archive, archive, "", "where rows go before they are removed: a folder, or command:COMMAND, which gets JSON lines")
}

// payloadFlag declares how long payloads stay.
func (k *keeperSettings) payloadFlag(fs *pflag.FlagSet) {
	fs.DurationVar(&k.payloads, "payload-retention", 0, "how long payloads of settled rows stay, when shorter than the rows; 0: as long as these")
}

// relayFlags declares the relay's part.
func (k *keeperSettings) relayFlags(fs *pflag.FlagSet) {
	fs.StringVar(&k.retention, "retention", admin.DefaultRetention.String(), `how long settled rows stay, 0 for not at all; "off" removes nothing`)
	k.limitFlags(fs, "retention-max-bytes", "retention-rate", "retention-archive")
	k.payloadFlag(fs)
	fs.DurationVar(&k.keepDead, "keep-dead", 0, "discard dead letters that were not tried for so long, such as 2160h; 0: they stay until a person acts")
	fs.DurationVar(&k.auditEvery, "audit-every", time.Minute, "time between two looks at the books; 0: never")
	fs.Lookup("retention").DefValue = "168h"
	mark(fs, "retention", "retention-max-bytes", "hold-max-rows", "hold-max-bytes", "retention-rate", "retention-archive", "payload-retention", "keep-dead", "audit-every")
}

// options are those of a keeper, checked.
func (k *keeperSettings) options(log *slog.Logger) (*admin.KeeperOptions, error) {
	switch {
	case k.olderThan < 0:
		return nil, exit.Usagef("older-than is %s: it must not be negative", k.olderThan)
	case k.rate < 1:
		return nil, exit.Usagef("rate is %d: it must be at least 1 row per second", k.rate)
	case k.holdRows < 0:
		return nil, exit.Usagef("hold-max-rows is %d: it must not be negative", k.holdRows)
	case k.payloads < 0:
		return nil, exit.Usagef("payload-retention is %s: it must not be negative", k.payloads)
	case k.payloads > 0 && k.archive != "":
		return nil, exit.Usagef("payload-retention and an archive: the archive would hold rows without payloads, choose one")
	case k.keepDead < 0 || k.keepDead > 0 && k.keepDead < time.Hour:
		return nil, exit.Usagef("keep-dead is %s: use an hour or more, or 0 to keep them until a person acts", k.keepDead)
	case k.auditEvery < 0:
		return nil, exit.Usagef("audit-every is %s: it must not be negative", k.auditEvery)
	}
	o := &admin.KeeperOptions{
		OlderThan: k.olderThan, MaxBytes: int64(k.maxBytes), HoldRows: k.holdRows, HoldBytes: int64(k.holdBytes),
		Payloads: k.payloads, KeepDead: k.keepDead, Rate: k.rate, AuditEvery: k.auditEvery, Logger: log,
	}
	command, isCommand := strings.CutPrefix(k.archive, "command:")
	switch {
	case isCommand && strings.TrimSpace(command) == "":
		return nil, exit.Usagef("archive is %s: write command:COMMAND", redact.Word(k.archive))
	case isCommand:
		o.Archive = admin.ArchiveBy(command, os.Stderr)
	case k.archive != "":
		info, err := os.Stat(k.archive)
		if err != nil || !info.IsDir() {
			return nil, exit.Usagef("archive is %s, which is no folder: make it, or write command:COMMAND", redact.Word(k.archive))
		}
		o.Archive = admin.ArchiveTo(k.archive)
	}
	return o, nil
}

// relayOptions reads what the relay calls it.
func (k *keeperSettings) relayOptions(log *slog.Logger) (*admin.KeeperOptions, error) {
	set := *k
	if set.retention != "off" {
		age, err := time.ParseDuration(set.retention)
		if err != nil {
			return nil, exit.Usagef("retention is %s: write a duration such as 168h, or off", redact.Word(set.retention))
		}
		set.olderThan = age
	}
	o, err := set.options(log)
	if err == nil {
		o.Off = set.retention == "off"
	}
	return o, err
}

// startKeeper starts the housekeeping of an outbox and returns the function that
// ends it, to be called when the relay has drained. It returns nil for a store
// that keeps no settled rows.
func startKeeper(ctx context.Context, st *open.Outbox, o *admin.KeeperOptions) (*admin.Keeper, func()) {
	k, err := admin.NewKeeper(st.Office, o)
	if err != nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	return k, func() { cancel(); <-done }
}

// keeperMetrics are the series of the housekeeping of one outbox.
type keeperMetrics struct {
	keeper                                                       *admin.Keeper
	removed, emptied, heldRows, heldBytes, over, runner, failing *prometheus.Desc
	difference, looked                                           *prometheus.Desc
	partitions, ahead, alarm                                     *prometheus.Desc
}

func newKeeperMetrics(k *admin.Keeper, labels prometheus.Labels) *keeperMetrics {
	d := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("postrider_"+name, help, variable, labels)
	}
	return &keeperMetrics{
		keeper:     k,
		removed:    d("retention_removed_total", "Settled rows that this process removed."),
		emptied:    d("retention_emptied_total", "Settled rows whose payload this process removed."),
		heldRows:   d("retention_held_rows", "Rows that the slowest pipe holds back, as of this process's last sweep.", "by"),
		heldBytes:  d("retention_held_bytes", "Their size, an estimate.", "by"),
		over:       d("retention_held_over", "1 while a pipe holds back more than the cap."),
		runner:     d("retention_runner", "1 while this process removes what is due; one does at a time."),
		failing:    d("housekeeping_failing", "1 while retention or the look at the books fails."),
		difference: d("audit_difference", "Messages by which the two books differ, as of the last look."),
		looked:     d("audit_timestamp_seconds", "When the books were looked at last."),
		partitions: d("partitions", "Partitions of an outbox that is kept in some."),
		ahead:      d("partitions_ahead", "Partitions that wait behind the one in use."),
		alarm:      d("partitions_alarm", "1 while the partitions need a person: see postrider partitions."),
	}
}

// Describe makes this an unchecked collector: its series depend on what is there.
func (m *keeperMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (m *keeperMetrics) Collect(ch chan<- prometheus.Metric) {
	c, s := series{ch}, m.keeper.Stats()
	c.counter(m.removed, float64(s.Removed))
	c.counter(m.emptied, float64(s.Emptied))
	c.gauge(m.runner, truth(s.Runner))
	c.gauge(m.failing, truth(s.Failed != ""))
	if s.Runner {
		c.gauge(m.over, truth(s.Held.Over))
		if s.Held.Pipe != "" {
			c.gauge(m.heldRows, float64(s.Held.Rows), s.Held.Pipe)
			c.gauge(m.heldBytes, float64(s.Held.Bytes), s.Held.Pipe)
		}
	}
	if p := s.Partitions; len(p.List) > 0 {
		c.gauge(m.partitions, float64(len(p.List)))
		c.gauge(m.ahead, float64(p.Ahead))
		c.gauge(m.alarm, truth(p.Alarm() != ""))
	}
	if s.Books {
		c.gauge(m.difference, float64(s.Difference))
		c.gauge(m.looked, float64(s.LookedAt.UnixMilli())/1000)
	}
}

// byteSize is a number of bytes that may be written with a unit.
type byteSize int64

var errByteSize = errors.New("write a number of bytes such as 500MB or 20GiB")

// Set reads a number with kB, MB, GB, TB, KiB, MiB, GiB, TiB or nothing behind it.
func (b *byteSize) Set(text string) error {
	digits := strings.TrimRight(text, "kKMGTiB ")
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 {
		return errByteSize
	}
	unit := strings.ToUpper(strings.TrimSpace(text[len(digits):]))
	base := 1000.0
	if strings.Contains(unit, "I") {
		base = 1024
	}
	for _, u := range []struct {
		letter string
		power  int
	}{{"K", 1}, {"M", 2}, {"G", 3}, {"T", 4}, {"", 0}} {
		if unit == u.letter+"B" || unit == u.letter+"IB" || u.power == 0 && unit == "" {
			for range u.power {
				n *= base
			}
			*b = byteSize(n)
			return nil
		}
	}
	return errByteSize
}

func (b *byteSize) String() string {
	if b == nil || *b == 0 {
		return ""
	}
	return fmt.Sprintf("%dB", int64(*b))
}

// Type is the word in the help.
func (*byteSize) Type() string { return "size" }
