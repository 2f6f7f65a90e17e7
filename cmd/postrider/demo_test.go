package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/internal/testserver"
)

func runDemo(t *testing.T, args ...string) demo.Answer {
	t.Helper()
	m := startStarvation()
	got := cli(t, nil, "", append([]string{"demo", "--orders", "300", "--kill", "2", "--output", "json"}, args...)...)
	m.stop()
	if got.code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", got.code, got.out, got.err)
	}
	var answer demo.Answer
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
		if err != nil || d < 100*time.Millisecond-m.worst(3*time.Second) { // a starved demo sees its relay's end late
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
	t.Chdir(t.TempDir())
	for _, next := range demo.Next() {
		runNext(t, next[0])
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
	runDemo(t, "--broker", "http://"+testserver.FreeAddr(t)+"/hook") // the demo listens there
}

func TestDemoOnSQS(t *testing.T) {
	a := runDemo(t, "--broker", "sqs://key:secret@us-east-1?endpoint=http://"+testserver.SharedElasticMQ(t).Addr)
	if a.Duplicates != 0 {
		t.Errorf("a FIFO queue kept %d duplicates", a.Duplicates)
	}
}

func TestDemoOnPubSub(t *testing.T) {
	runDemo(t, "--broker", "pubsub://postrider-demo?emulator="+testserver.SharedPubSub(t).Addr)
}
