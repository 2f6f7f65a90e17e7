// Package clock measures when a relay calls Deliver, and what CPU time a process takes meanwhile.
package clock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
)

// sink notes when Deliver was called for each message.
type sink struct {
	number func(payload []byte) (int, error)

	mu     sync.Mutex
	called []int64 // by number, in nanoseconds of the machine's clock; 0: not yet
	left   int
	again  int
	all    chan struct{} // closed once every message came
}

func (s *sink) Info() broker.Info { return broker.Info{Name: "clock"} }

func (s *sink) Deliver(_ context.Context, batch broker.Batch) []error {
	now := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch.Messages {
		switch n, err := s.number(batch.Messages[i].Payload); {
		case err != nil || n >= len(s.called):
			return []error{broker.Rejected(fmt.Errorf("message %d is not of this run: %w", n, err), "foreign", "")}
		case s.called[n] != 0:
			s.again++
		default:
			s.called[n] = now
			if s.left--; s.left == 0 {
				close(s.all)
			}
		}
	}
	return nil
}

// Run runs a relay until ctx ends. Once n messages came, it writes the number of duplicates among them, and
// the time of the first Deliver of each. number reads the number of a message.
func Run(ctx context.Context, st store.Store, n int, number func(payload []byte) (int, error), w io.Writer) error {
	s := &sink{number: number, called: make([]int64, n), left: n, all: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- relay.New(st, s, nil).Run(ctx) }()
	select {
	case <-s.all:
	case err := <-ended:
		return errors.Join(err, errors.New("the relay ended before all messages came"))
	}
	out := bufio.NewWriter(w)
	s.mu.Lock()
	fmt.Fprintln(out, s.again)
	for _, at := range s.called {
		fmt.Fprintln(out, at)
	}
	s.mu.Unlock()
	return errors.Join(out.Flush(), <-ended)
}

// Read reads what Run wrote into the times, and returns the number of duplicates.
func Read(r *bufio.Reader, times []time.Time) (again int, err error) {
	for i := -1; i < len(times); i++ {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("the relay ended early: %w", err)
		}
		v, err := strconv.ParseInt(line[:len(line)-1], 10, 64)
		switch {
		case err != nil:
			return 0, err
		case i < 0:
			again = int(v)
		default:
			times[i] = time.Unix(0, v)
		}
	}
	return again, nil
}

// Window measures a process's CPU time from a moment on.
type Window struct {
	pid   int
	begun chan struct{}
	at    time.Time
	cpu   time.Duration
	err   error
}

// NewWindow returns a window that begins after that time.
func NewWindow(pid int, after time.Duration) *Window {
	w := &Window{pid: pid, begun: make(chan struct{})}
	time.AfterFunc(after, func() {
		w.at = time.Now()
		w.cpu, w.err = proc.TreeCPU(pid)
		close(w.begun)
	})
	return w
}

// Fraction returns CPU seconds per second since the window began. It waits for that.
func (w *Window) Fraction() (float64, error) {
	<-w.begun
	cpu, err := proc.TreeCPU(w.pid)
	if err = errors.Join(err, w.err); err != nil {
		return 0, err
	}
	return figures.Round((cpu - w.cpu).Seconds() / time.Since(w.at).Seconds()), nil
}
