package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

func runDemo(t *testing.T, args ...string) demoAnswer {
	t.Helper()
	m := startStarvation()
	got := cli(t, nil, "", append([]string{"demo", "--orders", "300", "--kill", "2", "--output", "json"}, args...)...)
	m.stop()
	if got.code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", got.code, got.out, got.err)
	}
	var answer demoAnswer
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil {
		t.Fatalf("stdout is no JSON object: %v\n%s", err, got.out)
	}
	want := answer
	want.Orders, want.Messages, want.Effects, want.Kills, want.KillsInFlight = 300, 900, 900, 2, 2
	want.Lost, want.Phantom, want.OutOfOrder, want.DoubleEffects = 0, 0, 0, 0
	want.Delivered = 900 + answer.Duplicates
	if answer != want {
		t.Errorf("counted %+v, want %+v", answer, want)
	}
	promised(t, m, "the longest silence at the broker", time.Duration(answer.MaxGapMS)*time.Millisecond)
	took := tookOver.FindAllStringSubmatch(got.err, -1)
	if len(took) != 2 {
		t.Errorf("%d take-overs are said, want 2:\n%s", len(took), got.err)
	}
	for _, line := range took {
		d, err := time.ParseDuration(line[1])
		if err != nil || d < 100*time.Millisecond {
			t.Errorf("%q: no lease ends so soon (%v)", line[0], err)
		}
		promised(t, m, "a take-over", d)
	}
	return answer
}

var tookOver = regexp.MustCompile(`taken over after (\S+)`)

// promised holds the promise of 3 s against what was measured. A test shares
// its processors: the time for which somebody had to wait for one is added.
func promised(t *testing.T, m *starvation, what string, took time.Duration) {
	t.Helper()
	starved := m.worst(took)
	if took > 3*time.Second+starved {
		t.Errorf("%s took %v, promised are 3 s, and the machine was starved for %v at most", what, took, starved)
	}
	t.Logf("%s took %v; the machine was starved for up to %v in as long", what, took, starved.Round(time.Millisecond))
}

// starvation measures for how long there was more to do than processors: by the
// kernel's own count where it keeps one, and by how late a timer wakes us.
type starvation struct {
	begun time.Time
	late  []lateness
	quit  chan struct{}
	done  chan struct{}
}

type lateness struct{ at, by time.Duration }

func startStarvation() *starvation {
	m := &starvation{begun: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *starvation) run() {
	defer close(m.done)
	const every = 20 * time.Millisecond
	timer := time.NewTimer(every)
	defer timer.Stop()
	pressure, kept := cpuPressure()
	for from := time.Now(); ; from = time.Now() {
		timer.Reset(every)
		select {
		case <-m.quit:
			return
		case <-timer.C:
		}
		by := time.Since(from) - every - time.Millisecond
		if kept {
			now, _ := cpuPressure()
			by, pressure = max(by, now-pressure), now // a virtual machine may be starved as a whole
		}
		if by > 0 {
			m.late = append(m.late, lateness{time.Since(m.begun), by})
		}
	}
}

// cpuPressure is the time since boot in which a task had to wait for a processor.
func cpuPressure() (time.Duration, bool) {
	data, err := os.ReadFile("/proc/pressure/cpu") // some avg10=0.00 avg60=0.00 avg300=0.00 total=123
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(data), "\n")
	_, total, _ := strings.Cut(line, "total=")
	us, err := strconv.ParseInt(total, 10, 64)
	return time.Duration(us) * time.Microsecond, err == nil
}

func (m *starvation) stop() { close(m.quit); <-m.done }

// worst is the longest lateness in any stretch of that length.
func (m *starvation) worst(length time.Duration) time.Duration {
	var worst, sum time.Duration
	first := 0
	for _, l := range m.late {
		sum += l.by
		for m.late[first].at < l.at-length {
			sum -= m.late[first].by
			first++
		}
		worst = max(worst, sum)
	}
	return min(worst, length)
}

func TestStarvationIsTheWorstStretch(t *testing.T) {
	m := &starvation{late: []lateness{{time.Second, 100 * time.Millisecond}, {4 * time.Second, 300 * time.Millisecond}, {5 * time.Second, 400 * time.Millisecond}}}
	if got := m.worst(2 * time.Second); got != 700*time.Millisecond {
		t.Errorf("worst(2s) = %v, want 700ms", got)
	}
	if got := m.worst(500 * time.Millisecond); got != 400*time.Millisecond {
		t.Errorf("worst(500ms) = %v, want 400ms", got)
	}
}

// The commands that the demo ends with work when they are copied.
func TestNextCommands(t *testing.T) {
	d := &demo{app: &app{}}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 4, 2, ' ', 0)
	d.reportText(w, demoAnswer{})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	_, next, _ := strings.Cut(out.String(), "Next:\n")
	lines := strings.Split(strings.TrimSpace(next), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d next commands, want 3:\n%s", len(lines), next)
	}
	t.Chdir(t.TempDir())
	for _, line := range lines {
		command, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		rest, ok := strings.CutPrefix(command, "go run ./cmd/postrider ")
		if !ok {
			_, rest, _ = strings.Cut(command, " ")
		}
		runNext(t, rest)
	}
}

// runNext runs the command; of a demo only what it asks for is checked.
func runNext(t *testing.T, command string) {
	t.Helper()
	args := strings.Fields(command)
	if args[0] == "demo" {
		args = append(args, "--help")
	}
	mustCLI(t, "", args...)
}

func TestInvocation(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "postrider")
	if err := os.WriteFile(file, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(path string) func() (string, error) { return func() (string, error) { return path, nil } }
	found := func(path string) func(string) (string, error) {
		return func(string) (string, error) { return path, nil }
	}
	missing := func(string) (string, error) { return "", exec.ErrNotFound }
	for _, tc := range []struct {
		name, arg0, want string
		executable       func() (string, error)
		lookPath         func(string) (string, error)
	}{
		{"on the PATH", "postrider", "postrider", at(file), found(file)},
		{"another one on the PATH", "bin/postrider", "bin/postrider", at(file), found("/bin/sh")},
		{"not on the PATH", "./postrider", "./postrider", at(file), missing},
		{"go run", "/tmp/go-build1/b001/exe/postrider", "go run ./cmd/postrider", at("/tmp/go-build1/b001/exe/postrider"), missing},
	} {
		if got := invocation(tc.arg0, tc.executable, tc.lookPath); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// On a terminal the block is redrawn in place; elsewhere every look is a line.
func TestView(t *testing.T) {
	l := look{orders: 30, pending: 4, sent: 80, effects: 76, lag: 250 * time.Millisecond}
	var lines strings.Builder
	v := &view{out: &lines, total: 60, planned: 2, begun: time.Now()}
	v.draw(l)
	v.killed(true)
	v.takenOver(1100 * time.Millisecond)
	for _, want := range []string{"orders 30/60  pending 4  sent 80  lag 250ms  effects 76  kills 0\n", "relay killed (1 of 2)\n", "taken over after 1.1s\n"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the lines hold no %q:\n%s", want, lines.String())
		}
	}
	if strings.Contains(lines.String(), "\x1b") {
		t.Errorf("the lines hold control sequences: %q", lines.String())
	}

	var screen strings.Builder
	v = &view{out: &screen, tty: true, total: 60, planned: 2, begun: time.Now()}
	v.draw(l)
	first := screen.String()
	v.killed(true)
	v.draw(l)
	second := strings.TrimPrefix(screen.String(), first)
	if up := fmt.Sprintf("\x1b[%dA", strings.Count(first, "\n")); !strings.HasPrefix(second, up) || strings.Count(second, "\n") != strings.Count(first, "\n") {
		t.Errorf("the second block does not lie on the first:\n%q\n%q", first, second)
	}
	if !strings.Contains(first, "[####################....................]") || !strings.Contains(second, "dead: its lease runs out") {
		t.Errorf("blocks:\n%s\n%s", first, second)
	}
}

func TestDemoByItself(t *testing.T) { runDemo(t) }

// TestDemoLeavesTheEnvironmentAlone: a database and a broker that no flag names hold the
// user's own messages. Nobody listens at these.
func TestDemoLeavesTheEnvironmentAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	if err := os.WriteFile(file, []byte("schema: mine\nrelays:\n  - {name: a, store: 'postgres://127.0.0.1:1/db', broker: 'kafka://127.0.0.1:1'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"POSTRIDER_STORE": "postgres://127.0.0.1:1/shop", "POSTRIDER_BROKER": "kafka://127.0.0.1:1", "POSTRIDER_FORMAT": "raw", "POSTRIDER_CONFIG": file}
	if got := cli(t, env, "", "demo", "--orders", "5", "--kill", "0", "--output", "json"); got.code != 0 {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
}

func TestDemoOnPostgresAndNATS(t *testing.T) {
	runDemo(t, "--store", testserver.SharedPostgres(t, "15").URL)
}

func TestDemoOnPostgresAndKafka(t *testing.T) {
	runDemo(t, "--store", testserver.SharedPostgres(t, "15").URL, "--broker", "kafka://"+testserver.SharedKafka(t).Addr)
}

func TestDemoOnPostgresAndRabbitMQ(t *testing.T) {
	runDemo(t, "--store", testserver.SharedPostgres(t, "15").URL, "--broker", testserver.SharedRabbitMQ(t, testserver.RabbitMQVersions()[0]).URL)
}

func TestDemoOnRedis(t *testing.T) {
	runDemo(t, "--broker", testserver.SharedRedis(t, testserver.Redis7).URL)
}

func TestDemoOnAWebhook(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close() // the demo opens it
	runDemo(t, "--broker", "http://"+free.Addr().String()+"/hook")
}

// The count must see every broken promise.
func TestCompareBites(t *testing.T) {
	steps := map[string]int{"a/placed": 1, "a/paid": 2, "a/shipped": 3}
	at := time.Unix(0, 0)
	c := func(ref string, second int) copyAt {
		return copyAt{Ref: ref, Order: "a", at: at.Add(time.Duration(second) * time.Second)}
	}
	for _, tc := range []struct {
		name   string
		copies []copyAt
		want   demoAnswer
	}{
		{"kept", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/paid", 2), c("a/shipped", 5)}, demoAnswer{Messages: 3, Delivered: 4, Duplicates: 1, MaxGapMS: 3000}},
		{"rewind", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/placed", 2), c("a/paid", 3), c("a/shipped", 4)}, demoAnswer{Messages: 3, Delivered: 5, Duplicates: 2, MaxGapMS: 1000}},
		{"lost", []copyAt{c("a/placed", 0), c("a/paid", 1)}, demoAnswer{Messages: 3, Delivered: 2, Lost: 1, MaxGapMS: 1000}},
		{"phantom", []copyAt{c("a/placed", 0), c("a/declined", 1), c("a/paid", 2), c("a/shipped", 3)}, demoAnswer{Messages: 3, Delivered: 4, Phantom: 1, MaxGapMS: 1000}},
		{"unreadable", []copyAt{c("a/placed", 0), c("a/paid", 1), c("a/shipped", 2), decodeCopy([]byte("{"), at)}, demoAnswer{Messages: 3, Delivered: 4, Phantom: 1, MaxGapMS: 1000}},
		{"ahead", []copyAt{c("a/paid", 0), c("a/placed", 1), c("a/shipped", 2)}, demoAnswer{Messages: 3, Delivered: 3, OutOfOrder: 2, MaxGapMS: 1000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := compare(steps, tc.copies); got != tc.want {
				t.Errorf("compare = %+v, want %+v", got, tc.want)
			}
		})
	}
}
