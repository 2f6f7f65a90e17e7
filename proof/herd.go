package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/postrider/postrider/proof/member"
)

// herd is the consumer processes. One that ends without being asked to is started
// again at once, as a supervisor does.
type herd struct {
	config []byte
	wg     sync.WaitGroup

	mu     sync.Mutex
	alive  map[*consuming]bool
	kills  int // that ended by SIGKILL
	exits  int // that a handler has ended
	failed error
	rss    int // the largest seen, MiB
}

// consuming is one place in the herd, taken by one process after another.
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
		case !p.ending || err != nil:
			h.failed = errors.Join(h.failed, fmt.Errorf("a consumer ended by itself: %w", err))
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

// kill ends one of the processes with SIGKILL.
func (h *herd) kill(rnd *rand.Rand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*consuming
	for p := range h.alive {
		all = append(all, p)
	}
	if len(all) > 0 {
		_ = all[rnd.IntN(len(all))].cmd.Process.Kill()
	}
}

// leave asks a consumer to end and waits for it.
func (h *herd) leave(p *consuming) {
	h.mu.Lock()
	p.ending = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	h.mu.Unlock()
	late := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.done
}

// weigh looks at how much memory the processes hold.
func (h *herd) weigh() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.alive {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if f := strings.Fields(string(text)); err == nil && len(f) > 1 {
			pages, _ := strconv.Atoi(f[1])
			h.rss = max(h.rss, pages*os.Getpagesize()>>20)
		}
	}
}

func (h *herd) trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// waitFor polls until done, for as long as moved grows within limit.
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
			return fmt.Errorf("nothing has moved for %v", limit)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
