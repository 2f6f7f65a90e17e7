package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// Keeping holds the settings of retention and of the books.
type Keeping struct {
	retention  string // of the relay: a duration or "off"
	OlderThan  time.Duration
	maxBytes   byteSize
	holdRows   int64
	holdBytes  byteSize
	rate       int
	archive    string
	payloads   time.Duration
	keepDead   time.Duration
	AuditEvery time.Duration
}

// LimitFlags declares what relay and prune have in common, under the names given.
func (k *Keeping) LimitFlags(fs *pflag.FlagSet, maxBytes, rate, archive string) {
	fs.Var(&k.maxBytes, maxBytes, "remove settled rows before their age while the outbox takes more than this, such as 50GB")
	fs.Int64Var(&k.holdRows, "hold-max-rows", 10_000_000, "rows that one pipe may hold back before it is an alarm; 0: no alarm")
	fs.Var(&k.holdBytes, "hold-max-bytes", "the same by size")
	fs.IntVar(&k.rate, rate, 10_000, "most rows removed per second")
	fs.StringVar(&k.archive, archive, "", "where rows go before they are removed: a folder, or command:COMMAND, which gets JSON lines")
}

// PayloadFlag declares how long payloads stay.
func (k *Keeping) PayloadFlag(fs *pflag.FlagSet) {
	fs.DurationVar(&k.payloads, "payload-retention", 0, "how long payloads of settled rows stay, when shorter than the rows; 0: as long as these")
}

// relayFlags declares the relay's part.
func (k *Keeping) relayFlags(fs *pflag.FlagSet) {
	fs.StringVar(&k.retention, "retention", admin.DefaultRetention.String(), `how long settled rows stay, 0 for not at all; "off" removes nothing`)
	k.LimitFlags(fs, "retention-max-bytes", "retention-rate", "retention-archive")
	k.PayloadFlag(fs)
	fs.DurationVar(&k.keepDead, "keep-dead", 0, "discard dead letters that were not tried for so long, such as 2160h; 0: they stay until a person acts")
	fs.DurationVar(&k.AuditEvery, "audit-every", time.Minute, "time between two checks of the books, which compare what was written with what was sent; 0: never")
	fs.Lookup("retention").DefValue = "168h"
	config.MarkAll(fs, "retention", "retention-max-bytes", "hold-max-rows", "hold-max-bytes", "retention-rate", "retention-archive", "payload-retention", "keep-dead", "audit-every")
}

// Options returns the settings of a keeper, checked.
func (k *Keeping) Options(log *slog.Logger) (*admin.KeeperOptions, error) {
	switch {
	case k.OlderThan < 0:
		return nil, exit.Usagef("older-than is %s: it must not be negative", k.OlderThan)
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
	case k.AuditEvery < 0:
		return nil, exit.Usagef("audit-every is %s: it must not be negative", k.AuditEvery)
	}
	o := &admin.KeeperOptions{
		OlderThan: k.OlderThan, MaxBytes: int64(k.maxBytes), HoldRows: k.holdRows, HoldBytes: int64(k.holdBytes),
		Payloads: k.payloads, KeepDead: k.keepDead, Rate: k.rate, AuditEvery: k.AuditEvery, Logger: log,
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
			return nil, exit.Usagef("archive is %s, which is not a folder: create it, or write command:COMMAND", redact.Word(k.archive))
		}
		o.Archive = admin.ArchiveTo(k.archive)
	}
	return o, nil
}

// relayOptions reads what the relay calls it.
func (k *Keeping) relayOptions(log *slog.Logger) (*admin.KeeperOptions, error) {
	set := *k
	var err error
	if set.OlderThan, err = set.age(); err != nil {
		return nil, err
	}
	if set.rate < 1 {
		return nil, exit.Usagef("retention-rate is %d: it must be at least 1 row per second", set.rate)
	}
	o, err := set.Options(log)
	if err == nil {
		o.Off = set.retention == "off"
	}
	return o, err
}

// Archives reports whether the relay archives rows before it removes them.
func (r *Engine) Archives() bool { return r.keeper.archive != "" }

// Follow takes from the settings of the outbox's relay what the flags of prune leave open.
func (k *Keeping) Follow(relay *Engine, flags *pflag.FlagSet) error {
	set := relay.keeper
	if !flags.Changed("archive") {
		k.archive = set.archive
	}
	if flags.Changed("older-than") {
		return nil
	}
	if set.retention == "off" {
		return exit.Usagef("retention is off: give --older-than to remove rows all the same")
	}
	var err error
	k.OlderThan, err = set.age()
	return err
}

// differs returns the first setting in which two relays keep the rows of their outbox
// differently, and its two values; "" where they agree. Dead letters are those of a pipe.
func (k *Keeping) differs(other *Keeping) (name, has, had string) {
	others := other.kept()
	for i, v := range k.kept() {
		if v != others[i] {
			return v[0], redact.Word(v[1]), redact.Word(others[i][1])
		}
	}
	return "", "", ""
}

// kept lists the settings of an outbox, with their values.
func (k *Keeping) kept() [][2]string {
	age := k.retention
	if d, err := time.ParseDuration(age); err == nil { // 168h is 168h0m0s
		age = d.String()
	}
	return [][2]string{
		{"retention", age},
		{"retention-max-bytes", k.maxBytes.String()},
		{"retention-rate", strconv.Itoa(k.rate)},
		{"retention-archive", k.archive},
		{"payload-retention", k.payloads.String()},
		{"hold-max-rows", strconv.FormatInt(k.holdRows, 10)},
		{"hold-max-bytes", k.holdBytes.String()},
		{"audit-every", k.AuditEvery.String()},
	}
}

// age is how long the relay keeps settled rows, 0 where it removes none.
func (k *Keeping) age() (time.Duration, error) {
	if k.retention == "off" {
		return 0, nil
	}
	age, err := time.ParseDuration(k.retention)
	switch {
	case err != nil:
		return 0, exit.Usagef("retention is %s: write a duration such as 168h, or off", redact.Word(k.retention))
	case age < 0:
		return 0, exit.Usagef("retention is %s: it must not be negative", k.retention)
	}
	return age, nil
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
