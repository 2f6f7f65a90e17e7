// Package testserver starts private real servers for tests: PostgreSQL 15 to
// 18, MySQL, MariaDB, Kafka, NATS, Redis, Valkey, RabbitMQ and others. Each has its own
// directory, its own port on 127.0.0.1 and an unprivileged user, and is stopped by
// its pid.
//
// StartX gives a test its own server, which it may kill, freeze and restart.
// SharedX gives all tests of one binary the same server, which they must neither
// kill, freeze nor stop. LaunchX is StartX for benchmarks and tools.
//
// A server dies with the process that started it, even if that process is killed.
// The next process that starts a server removes its temporary directory.
//
// A test whose server is not installed is skipped with a message, or fails when
// POSTRIDER_REQUIRE_SERVERS=1. "make servers" installs them.
package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// TB is the part of *testing.T, *testing.B and *testing.F that this package needs.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// startTimeout bounds the start of one server. It is generous for busy machines.
const startTimeout = 3 * time.Minute

// MissingError reports that a server is not installed.
type MissingError struct {
	Server string // "PostgreSQL 18", or the name of a program
	Fix    string // the command that installs it
	// Optional means that the tests continue without it, even if servers are required.
	Optional bool
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("testserver: %s is not installed; get it with: %s", e.Server, e.Fix)
}

type options struct {
	durable    bool
	throughput bool
	config     []string
	sasl       *sasl
}

// Option changes how a server is started. Without options a server suits many short
// tests: it starts fast and does not wait for the disk, but a killed process loses
// no acknowledged write.
type Option func(*options)

// PGOption is an Option, named for PostgreSQL's launchers.
type PGOption = Option

// Durable makes the server wait for the disk before it acknowledges: for
// benchmarks, and for tests that make claims about power loss.
func Durable() Option { return func(o *options) { o.durable = true } }

// Throughput gives the server memory and settings for a benchmark.
func Throughput() Option { return func(o *options) { o.throughput = true } }

// WithConfig appends lines to the server's configuration file, in its syntax. They
// override the defaults of this package.
func WithConfig(lines ...string) Option {
	return func(o *options) { o.config = append(o.config, lines...) }
}

func apply(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// CacheDir returns the directory of installed servers: $POSTRIDER_SERVERS, or
// /var/cache/postrider/servers for root, whose home the servers' users cannot read,
// or the user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("POSTRIDER_SERVERS"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/postrider/servers", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("testserver: no cache directory: %w", err)
	}
	return filepath.Join(dir, "postrider", "servers"), nil
}

// Required reports whether a missing server is a failure rather than a skip.
func Required() bool { return os.Getenv("POSTRIDER_REQUIRE_SERVERS") == "1" }

// GiveUp ends a test without its server or another program. A MissingError skips the
// test, and "make test" lists the skip at its end, unless POSTRIDER_REQUIRE_SERVERS
// is set. Any other error fails it.
func GiveUp(tb TB, err error) {
	tb.Helper()
	var missing *MissingError
	if !errors.As(err, &missing) || Required() && !missing.Optional {
		tb.Fatalf("%v", err)
		return
	}
	logSkip(tb, missing)
	tb.Skipf("SKIPPED, NOT TESTED: %v", err)
}

// logSkip adds the skip to the file that "make test" prints at its end.
func logSkip(tb TB, missing *MissingError) {
	path := os.Getenv("POSTRIDER_SKIP_LOG")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		tb.Logf("testserver: skip log: %v", err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %s: no %s (%s)\n", filepath.Base(os.Args[0]), tb.Name(), missing.Server, missing.Fix)
}
