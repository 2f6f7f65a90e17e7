package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/proc"
)

// latency is the time from the return of a COMMIT to a consumer's receipt at a fixed rate.
// A receipt before the return counts as 0.
type latency struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Core float64 `json:"core_fraction"`
	DB   float64 `json:"database_core_fraction"` // writers included
	Gate gate    `json:"gate"`
}

// idle is what a way costs while nothing is written.
type idle struct {
	Core float64 `json:"core_fraction"`
	DB   float64 `json:"database_core_fraction"`
	RSS  float64 `json:"rss_mib"`
}

// steady lets a way wait, and then gives it one row per transaction at a fixed rate.
func (l *lab) steady(ctx context.Context, w *way, c config) (rest idle, late latency, err error) {
	warm := max(c.rate*min(c.seconds, 5), 50) // messages before those that count
	if w.virtual {
		warm = max(c.rate*3*c.seconds, 50) // a minute, with 20 seconds
	}
	n := warm + c.rate*c.seconds
	t, err := l.open(ctx, w, n)
	if err != nil {
		return rest, late, err
	}
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	p, err := w.start(ctx, t)
	if err != nil {
		return rest, late, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute+time.Duration(8*c.seconds)*time.Second)
	defer cancel()

	first := 10 // as proof that it works
	for i := range first {
		if err := w.write(ctx, t, i, i+1); err != nil {
			return rest, late, err
		}
	}
	if err := l.until(ctx, t, p, first); err != nil {
		return rest, late, err
	}
	if err := pause(ctx, 2*time.Second); err != nil { // let it calm down
		return rest, late, err
	}
	window := newWindow(p.pid, l.server())
	if err := pause(ctx, time.Duration(c.seconds)*time.Second); err != nil {
		return rest, late, err
	}
	if rest.Core, rest.DB, err = window.fractions(); err != nil {
		return rest, late, err
	}
	if rest.RSS, err = proc.Resident(p.pid); err != nil {
		return rest, late, err
	}

	received := make([]time.Time, n)
	followed := make(chan error, 1)
	go func() {
		followed <- l.follow(ctx, t.topic, n, func(r *kgo.Record) {
			if i, err := number(r.Value); err == nil && i < n && received[i].IsZero() {
				received[i] = time.Now()
			}
		})
	}()
	var counting *span
	committed, err := writeAt(ctx, w, t, c.rate, first, n, func(i int) {
		if i == warm {
			counting = newWindow(p.pid, l.server())
		}
	})
	if err != nil {
		return rest, late, err
	}
	if late.Core, late.DB, err = counting.fractions(); err != nil {
		return rest, late, err
	}
	if err := <-followed; err != nil {
		return rest, late, fmt.Errorf("%w: %s", err, p.said())
	}
	var d []float64
	for i := warm; i < n; i++ {
		if !received[i].IsZero() {
			d = append(d, max(0, received[i].Sub(committed[i]).Seconds()*1000))
		}
	}
	if len(d) == 0 {
		return rest, late, errors.New("no message was received")
	}
	slices.Sort(d)
	late.P50, late.P99 = round(d[len(d)/2]), round(d[min(len(d)*99/100, len(d)-1)])
	late.Gate, err = l.count(ctx, t.topic, n)
	return rest, late, err
}

// span measures the CPU time of a relay and of the database.
type span struct {
	relay, database int
	at              time.Time
	before          [2]time.Duration
	err             error
}

func newWindow(relay, database int) *span {
	w := &span{relay: relay, database: database, at: time.Now()}
	w.before, w.err = w.read()
	return w
}

func (w *span) read() (now [2]time.Duration, err error) {
	var errs [2]error
	now[0], errs[0] = proc.TreeCPU(w.relay)
	now[1], errs[1] = proc.TreeCPU(w.database)
	return now, errors.Join(errs[:]...)
}

func (w *span) fractions() (relay, database float64, err error) {
	if w == nil {
		return 0, 0, errors.New("no message was written")
	}
	now, err := w.read()
	per := func(i int) float64 { return round3((now[i] - w.before[i]).Seconds() / time.Since(w.at).Seconds()) }
	return per(0), per(1), errors.Join(err, w.err)
}

// writeAt commits message i at the i-th tick, whether or not the previous ones have
// returned, and returns the times at which the COMMITs returned. A key has one writer.
func writeAt(ctx context.Context, w *way, t *trial, rate, from, to int, before func(i int)) ([]time.Time, error) {
	const writers = 16
	var (
		wg        sync.WaitGroup
		committed = make([]time.Time, to)
		errs      = make([]error, writers)
		begin     = time.Now().Add(100 * time.Millisecond)
	)
	for k := range writers {
		wg.Go(func() {
			for i := from; i < to && errs[k] == nil; i++ {
				if i%writers != k {
					continue
				}
				if errs[k] = pause(ctx, time.Until(begin.Add(time.Duration(i-from)*time.Second/time.Duration(rate)))); errs[k] != nil {
					return
				}
				before(i)
				errs[k] = w.write(ctx, t, i, i+1)
				committed[i] = time.Now()
			}
		})
	}
	wg.Wait()
	return committed, errors.Join(errs...)
}
