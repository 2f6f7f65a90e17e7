package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

// failoverWriters write through a URL with all hosts of the cluster and record the
// messages whose commit succeeded.
type failoverWriters struct {
	pool *pgxpool.Pool
	gate sync.RWMutex // locked while no transaction may begin

	mu        sync.Mutex
	acked     map[string]bool // payloads
	rollbacks int
	errors    int
}

// start runs writers until the returned function is called, which waits for them.
func (w *failoverWriters) start(ctx context.Context, writers int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { w.write(ctx, rand.New(rand.NewPCG(uint64(i), 7))) })
	}
	return func() { cancel(); wg.Wait() }
}

// hold waits for the end of the present transactions, and lets no other begin until release
// is called.
func (w *failoverWriters) hold() (release func()) {
	w.gate.Lock()
	return w.gate.Unlock
}

func (w *failoverWriters) write(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		w.gate.RLock()
		// Like an application it gives up a transaction that hangs.
		tx, cancel := context.WithTimeout(ctx, 5*time.Second)
		payloads, err := w.transaction(tx, rnd)
		cancel()
		w.gate.RUnlock()
		next := 10 * time.Millisecond
		w.mu.Lock()
		switch {
		case errors.Is(err, errRolledBack):
			w.rollbacks++
		case err != nil:
			w.errors++
			next = 200 * time.Millisecond
		default:
			for _, p := range payloads {
				w.acked[p] = true
			}
		}
		w.mu.Unlock()
		_ = pause(ctx, next)
	}
}

var errRolledBack = errors.New("rolled back")

// transaction writes one to eight messages with unique payloads.
func (w *failoverWriters) transaction(ctx context.Context, rnd *rand.Rand) (payloads []string, err error) {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	first := rnd.IntN(keyCount - 64)
	for i := range 1 + rnd.IntN(8) {
		var payload string
		err := tx.QueryRow(ctx, `WITH v AS (UPDATE truth SET version = version + 1 WHERE key = $2 RETURNING version)
			INSERT INTO postrider.outbox (topic, key, type, payload, version)
			SELECT $1, $2, 'proof.event', convert_to($2 || ':' || version || ':' || $3, 'UTF8'), version FROM v
			RETURNING convert_from(payload, 'UTF8')`, topic, fmt.Sprintf("k%d", first+i*8), fmt.Sprintf("%016x", rnd.Uint64())).Scan(&payload)
		if err != nil {
			return nil, err
		}
		payloads = append(payloads, payload)
	}
	if rnd.IntN(8) == 0 {
		return nil, errors.Join(errRolledBack, tx.Rollback(ctx))
	}
	return payloads, tx.Commit(ctx)
}

// arrivals has the messages of the key "probe" and their times of arrival.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	bell chan struct{}
}

func watchArrivals(nc *nats.Conn) (*arrivals, error) {
	a := &arrivals{at: make(map[string]time.Time), bell: make(chan struct{}, 1)}
	_, err := nc.Subscribe(topic, func(m *nats.Msg) {
		if !strings.HasPrefix(string(m.Data), "probe:") {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, ok := a.at[string(m.Data)]; !ok {
			a.at[string(m.Data)] = time.Now()
		}
		select {
		case a.bell <- struct{}{}:
		default:
		}
	})
	return a, err
}

// await waits for a payload and returns its time of arrival.
func (a *arrivals) await(ctx context.Context, payload string) (time.Time, error) {
	for {
		a.mu.Lock()
		at, ok := a.at[payload]
		a.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-a.bell:
		case <-ctx.Done():
			return at, context.Cause(ctx)
		}
	}
}

// spoken is a relay process and its log lines.
type spoken struct {
	cmd   *exec.Cmd
	done  chan error
	mu    sync.Mutex
	lines []line
	from  int // the first line after the last mark
}

// line is one line of a log in JSON.
type line struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Part  string `json:"part"`
	raw   string
}

// speak starts the program.
func speak(program string, args ...string) (*spoken, error) {
	s := &spoken{cmd: exec.Command(program, args...), done: make(chan error, 1)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.read(out)
		s.done <- s.cmd.Wait()
	}()
	return s, nil
}

func (s *spoken) read(out io.Reader) {
	in := bufio.NewScanner(out)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		l := line{raw: in.Text()}
		_ = json.Unmarshal(in.Bytes(), &l) // a line that is not JSON counts as other
		s.mu.Lock()
		s.lines = append(s.lines, l)
		s.mu.Unlock()
	}
}

func (s *spoken) mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = len(s.lines)
}

// since counts the lines since the mark.
func (s *spoken) since() (down, back, other int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines[s.from:] {
		switch {
		case l.Part == "store" && l.Level == "WARN" && l.Msg == downLine:
			down++
		case l.Part == "store" && l.Level == "INFO" && l.Msg == backLine:
			back++
		default:
			other++
		}
	}
	return down, back, other
}

// The events that a relay logs when its database becomes unreachable, and reachable again.
const (
	downLine = "database unreachable"
	backLine = "database reachable again"
)

func (s *spoken) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, l := range s.lines[s.from:] {
		b.WriteString(l.raw + "\n")
	}
	return b.String()
}

// over returns an error if the process has ended.
func (s *spoken) over() error {
	select {
	case err := <-s.done:
		return fmt.Errorf("a relay exited: %w\n%s", err, s.text())
	default:
		return nil
	}
}

func (s *spoken) end() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.done:
		if err != nil {
			say("relay exited: %v", err)
		}
	case <-time.After(30 * time.Second):
		_ = s.cmd.Process.Kill()
	}
}
