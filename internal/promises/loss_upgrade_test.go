package promises

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// Directories with older programs: source.tar.gz has the packages of a program, without
// their tests.
const (
	// schema1 is the relay of schema version 1. It must work beside newer relays as long
	// as the migrations declare so.
	schema1 = "testdata/schema1"
	// before is the whole program as of commit 878313d, which had today's schema.
	before = "testdata/before"
)

// built returns the older program of a directory, which it builds once.
func built(t *testing.T, dir, pkg string) string {
	t.Helper()
	cache, err := testserver.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum, tree := sha256.New(), t.TempDir()
	if err := os.Mkdir(filepath.Join(tree, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := file.Name()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = sum.Write(data)
		if name == "main.go" || name == "go.mod" { // a separate program around the packages
			name = filepath.Join("old", name)
		}
		if err := os.WriteFile(filepath.Join(tree, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(cache, fmt.Sprintf("%s-%x", filepath.Base(dir), sum.Sum(nil)[:8]))
	if _, err := os.Stat(program); err == nil {
		return program
	}
	temporary := fmt.Sprintf("%s.%d", program, os.Getpid())
	for _, step := range [][]string{
		{"tar", "-x", "-f", filepath.Join(tree, "source.tar.gz"), "-C", tree},
		{"mkdir", "-p", cache},
		{"go", "build", "-C", tree, "-o", temporary, pkg}, // with the flags of a test, so that modules are compiled once
	} {
		for tries := 1; ; tries++ { // the build downloads modules, and a proxy may be unreachable for a moment
			cmd := exec.Command(step[0], step[1:]...)
			cmd.Env = append(os.Environ(), "GOWORK=", "GOFLAGS=")
			out, err := cmd.CombinedOutput()
			if err == nil {
				break
			}
			if tries == 4 {
				t.Fatalf("%v: %v\n%s", step, err, out)
			}
			t.Logf("%v: %v\n%s", step, err, out)
			<-time.After(time.Duration(tries*tries) * 2 * time.Second)
		}
	}
	if err := os.Rename(temporary, program); err != nil {
		t.Fatal(err)
	}
	return program
}

// previousRelay runs the old program until stop is called, which requires that it drains
// and exits with 0.
func (r *rig) previousRelay(program, broker string) (stop func()) {
	r.Helper()
	cmd := exec.Command(program, r.url, broker)
	cmd.Stdout, cmd.Stderr = r.said, r.said
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopped := false
	r.Cleanup(func() {
		if !stopped {
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	return func() {
		r.Helper()
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			r.Errorf("the old relay ended early: %v", err)
		}
		if err := <-ended; err != nil {
			r.Errorf("the old relay: %v\n%s", err, r.said)
		}
	}
}

// owners waits until n instances own lanes.
func (r *rig) owners(n int64) {
	r.Helper()
	r.until(time.Minute, "lanes are shared", func() bool {
		return r.number(`SELECT count(DISTINCT owner) FROM postrider.lane_cursor WHERE owner <> ''`) == n
	})
}

// TestRollingUpgrade upgrades under load: the schema first, beside a relay of the
// previous version, then a relay of this version beside it, then without it; then the old
// one returns, as in a rollback. No message is lost or duplicated, and no key is out of
// order.
//
// Promises: L, O, D
func TestRollingUpgrade(t *testing.T) {
	program := built(t, schema1, "./old")
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		s := pgstore.New(r.pool, nil)
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: 1}); err != nil { // the old version's schema
			t.Fatal(err)
		}
		nats := testserver.StartNATS(t)
		srv := natsServer(t, nats)
		srv.make(t, r.topic, 1<<20)
		broker := nats.URL + "?dedup=off"
		stopWriters := r.writeOn(4)
		stopOld := r.previousRelay(program, broker)
		r.owners(1)
		if steps, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil || len(steps) != pgstore.Version-1 {
			t.Fatalf("migrate beside the old relay: %v, %v", steps, err)
		}
		_, stopNew := r.relay(srv.sink(t), nil)
		r.owners(2)
		r.delivers("side by side")
		stopOld()
		r.owners(1)
		r.delivers("only the new one")
		stopOld = r.previousRelay(program, broker)
		r.owners(2)
		r.delivers("the old one is back")
		stopOld()
		stopWriters()
		r.drained(time.Minute)
		stopNew()
		if n := r.check(srv.read(t, r.topic)); n != 0 {
			t.Errorf("%d messages arrived twice", n)
		}
		r.nothingParked()
	})
}

// delivers waits until every instance with lanes has delivered more messages.
func (r *rig) delivers(when string) {
	r.Helper()
	const slowest = `SELECT min(n)::bigint FROM (SELECT sum(delivered) AS n FROM postrider.lane_cursor WHERE owner <> '' GROUP BY owner) x`
	before := r.number(slowest)
	r.until(time.Minute, "every relay delivers: "+when, func() bool { return r.number(slowest) > before })
}

// Write appends the output of a process.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}
