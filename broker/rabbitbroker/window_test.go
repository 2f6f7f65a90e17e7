package rabbitbroker

import (
	"math/rand/v2"
	"testing"
	"time"
)

// model is a broker that answers after at least latency, and accepts at most
// capacity messages per second, within a tenth.
type model struct {
	latency  time.Duration
	capacity float64
}

func (m model) rate(unconfirmed int) float64 {
	return min(float64(unconfirmed)/m.latency.Seconds(), m.capacity)
}

// run confirms n messages of senders that always wait for room.
func (m model) run(w *window, clock *time.Time, noise *rand.Rand, n int) {
	for range n {
		for ok := true; ok; {
			ok, _ = w.take()
		}
		step := 1 / (m.rate(w.size()) * (0.95 + noise.Float64()/10))
		*clock = clock.Add(time.Duration(step * float64(time.Second)))
		w.give(true)
	}
}

func TestWindowFindsItsSize(t *testing.T) {
	for name, m := range map[string]model{
		"near":      {time.Millisecond, 30_000},
		"far":       {60 * time.Millisecond, 50_000},
		"disk":      {10 * time.Millisecond, 5_000},
		"very far":  {300 * time.Millisecond, 20_000},
		"very fast": {5 * time.Millisecond, 300_000},
	} {
		t.Run(name, func(t *testing.T) {
			clock := time.Unix(0, 0)
			noise := rand.New(rand.NewPCG(1, 2))
			w := newWindow(0, func() time.Time { return clock })
			m.run(w, &clock, noise, 400_000)
			began := clock
			const n = 200_000
			m.run(w, &clock, noise, n)
			got, best := n/clock.Sub(began).Seconds(), m.rate(windowMost)
			if got < 0.9*best {
				t.Errorf("%.0f messages/s with about %d unconfirmed, the best size has %.0f", got, w.size(), best)
			}
			if enough := int(m.capacity * m.latency.Seconds()); w.size() > max(8*enough, 8*windowLeast) {
				t.Errorf("%d messages are unconfirmed, %d are enough", w.size(), enough)
			}
		})
	}
}

// TestWindowShrinks: the window shrinks to the rate that the broker accepts.
func TestWindowShrinks(t *testing.T) {
	w := newWindow(0, time.Now)
	for range 20 {
		w.shrink()
	}
	if w.size() != windowLeast {
		t.Errorf("size %d after the broker has blocked again and again, want %d", w.size(), windowLeast)
	}
	fixed := newWindow(7, time.Now)
	fixed.shrink()
	if fixed.size() != 7 {
		t.Errorf("a fixed window has size %d", fixed.size())
	}
	for range 7 {
		if ok, _ := fixed.take(); !ok {
			t.Fatal("no room")
		}
	}
	ok, room := fixed.take()
	if ok {
		t.Fatal("an eighth message has room")
	}
	fixed.give(false)
	select {
	case <-room:
	default:
		t.Error("who waits for room is not told that there is some")
	}
}

func (w *window) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limit
}
