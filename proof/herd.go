package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/postrider/postrider/proof/member"
)

// herd runs the consumer processes. Like a supervisor it restarts a process that ended
// by itself at once.
type herd struct {
	config []byte
	wg     sync.WaitGroup

	mu     sync.Mutex
	alive  map[*consuming]bool
	kills  int // processes ended by SIGKILL
	exits  int // processes ended by a handler
	failed error
	rss    int   // the largest process so far, MiB
	sizes  []int // the largest process of each sample, MiB
}

// consuming is a place in the herd; restarts put a new process into it.
type consuming struct {
	cmd    *exec.Cmd
	ending bool
	done   chan struct{}
}

func newHerd(c member.Config) (*herd, error) {
	config, err := json.Marshal(c)
	return &herd{config: config, alive: make(map[*consuming]bool)}, err
}

// join starts another consumer.
func (h *herd) join() (*consuming, error) {
	p := &consuming{done: make(chan struct{})}
	if err := h.start(p); err != nil {
		return nil, err
	}
	h.wg.Go(func() { h.supervise(p) })
	return p, nil
}

func (h *herd) start(p *consuming) error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), member.Env+"="+string(h.config))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a consumer: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p.cmd = cmd
	h.alive[p] = true
	if p.ending { // leave was called while no process ran
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	return nil
}

func (h *herd) supervise(p *consuming) {
	defer close(p.done)
	for {
		err := p.cmd.Wait()
		ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		h.mu.Lock()
		delete(h.alive, p)
		switch {
		case ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL:
			h.kills++
		case p.cmd.ProcessState.ExitCode() == member.Ended:
			h.exits++
		case p.ending && ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM: // before it had a signal handler
		case !p.ending || err != nil:
			h.failed = errors.Join(h.failed, fmt.Errorf("a consumer exited by itself: %w", err))
		}
		ending := p.ending || h.failed != nil
		h.mu.Unlock()
		if ending {
			return
		}
		if err := h.start(p); err != nil {
			h.mu.Lock()
			h.failed = errors.Join(h.failed, err)
			h.mu.Unlock()
			return
		}
	}
}

// kill ends a random process with SIGKILL.
func (h *herd) kill(rnd *rand.Rand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.some(rnd) {
		_ = p.cmd.Process.Kill()
		return
	}
}

// leave sends SIGTERM to a consumer and waits for its end.
func (h *herd) leave(p *consuming) {
	h.mu.Lock()
	p.ending = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	h.mu.Unlock()
	late := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.done
}

// freeze suspends a random process until thaw is called.
func (h *herd) freeze(rnd *rand.Rand) (thaw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.some(rnd) {
		if frozen := p.cmd.Process; frozen.Signal(syscall.SIGSTOP) == nil {
			return func() { _ = frozen.Signal(syscall.SIGCONT) }
		}
	}
	return func() {}
}

// some returns the running processes in random order. The caller holds mu.
func (h *herd) some(rnd *rand.Rand) []*consuming {
	all := slices.Collect(maps.Keys(h.alive))
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// weigh samples the memory of the processes.
func (h *herd) weigh() {
	h.mu.Lock()
	defer h.mu.Unlock()
	largest := 0
	for p := range h.alive {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if f := strings.Fields(string(text)); err == nil && len(f) > 1 {
			pages, _ := strconv.Atoi(f[1])
			largest = max(largest, pages*os.Getpagesize()>>20)
		}
	}
	if largest > 0 {
		h.rss, h.sizes = max(h.rss, largest), append(h.sizes, largest)
	}
}

// memory has the median of the samples of the largest consumer, MiB, for the first,
// second and last third of the run.
type memory struct {
	Start  int  `json:"start"`
	Middle int  `json:"middle"`
	End    int  `json:"end"`
	Flat   bool `json:"flat"` // the last third is at most a quarter and rssNoise above the first
}

// rssNoise is the difference in MiB between processes that do the same work: the
// collector lets garbage grow to the size of the live heap.
const rssNoise = 16

func remember(sizes []int) (m memory) {
	if n := len(sizes); n >= 3 {
		m.Start, m.Middle, m.End = median(sizes[:n/3]), median(sizes[n/3:2*n/3]), median(sizes[2*n/3:])
		m.Flat = m.End <= m.Start*5/4+rssNoise
	}
	return m
}

func median(of []int) int { return slices.Sorted(slices.Values(of))[len(of)/2] }

func (h *herd) trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// waitFor polls until done returns true. It fails when moved does not grow within limit.
func waitFor(ctx context.Context, limit time.Duration, moved func() int, done func() (bool, error)) error {
	last, since := -1, time.Now()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		if now := moved(); now > last {
			last, since = now, time.Now()
		} else if time.Since(since) > limit {
			return fmt.Errorf("no progress for %v", limit)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
