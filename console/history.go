package console

import (
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store/ops"
)

// span is the time that the charts of a page show.
type span struct {
	Name  string        // in the address; "": the first
	Label string        // of the link
	Long  time.Duration // how far it goes back
	every time.Duration // about how far apart its points are; 0: as they were kept
}

// Href is the query of the link.
func (s span) Href() string { return string(query("span", s.Name)) }

// spans are those that people can choose. Without a history there are the first two.
func spans() []span {
	return []span{{"", "15 min", 15 * time.Minute, 0}, {"2h", "2 h", 2 * time.Hour, 0}, {"2d", "2 d", 48 * time.Hour, time.Minute}, {"5w", "5 weeks", 35 * 24 * time.Hour, 15 * time.Minute}}
}

// span returns the chosen span of the request, and all spans that the store has.
func (q *request) span() (chosen span, all []span) {
	all = spans()
	if q.place.office.History == nil {
		all = all[:2]
	}
	for _, s := range all {
		if s.Name == q.r.URL.Query().Get("span") {
			return s, all
		}
	}
	return all[0], all
}

// mostPoints is how many points a line of a chart has.
const mostPoints = 480

// series returns what a chart of the span is drawn from: what the store has kept, and what this
// process has seen since.
func (p *place) series(ctx context.Context, s span) []sample {
	now := time.Now()
	seen := p.samples()
	kept := p.kept(ctx, s, now)
	all := slices.Clone(kept)
	var last time.Time
	if len(kept) > 0 {
		last = kept[len(kept)-1].at
	}
	for _, one := range seen {
		if one.at.After(last) && now.Sub(one.at) <= s.Long {
			all = append(all, one)
		}
	}
	return fewer(all, mostPoints)
}

// kept returns what the store has kept. Without an answer it is what was kept before: the page
// tells by itself that the database does not answer.
func (p *place) kept(ctx context.Context, s span, now time.Time) []sample {
	if p.office.History == nil {
		return nil
	}
	p.keptMu.Lock()
	defer p.keptMu.Unlock()
	had := p.keptOf[s.Name]
	if now.Sub(had.asked) < ops.PointEvery {
		return had.all
	}
	// Every page that waits takes the answer: the reader of one may go away.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	points, err := p.office.History.Points(limited, now.Add(-s.Long), s.every)
	had.asked = now
	if err == nil {
		had.all = make([]sample, len(points))
		for i := range points {
			had.all[i] = sampleOfPoint(&points[i])
		}
	}
	p.keptOf[s.Name] = had
	return had.all
}

// keptSpan is what the store has kept of a span, as of when it was asked.
type keptSpan struct {
	all   []sample
	asked time.Time
}

func sampleOfPoint(p *ops.Point) sample {
	return sample{at: p.At, lag: p.Lag, pending: p.Pending, capped: p.Capped, delivered: p.Delivered, dead: p.Dead, blocked: p.Blocked, drawn: p.Drawn}
}

// fewer returns at most n of the samples. One stands for those before it with their worst lag.
func fewer(all []sample, n int) []sample {
	if len(all) <= n {
		return all
	}
	step := (len(all) + n - 1) / n
	some := make([]sample, 0, n)
	for i := 0; i < len(all); i += step {
		group := all[i:min(i+step, len(all))]
		one := group[len(group)-1]
		for _, s := range group {
			one.lag, one.dead, one.blocked = max(one.lag, s.lag), max(one.dead, s.dead), max(one.blocked, s.blocked)
		}
		some = append(some, one)
	}
	return some
}

// How long a console waits for a relay to keep a point, and for another look after a failure: a
// reader's role may not write.
const (
	consolePatience = 25 * time.Second
	recordAgain     = 5 * time.Minute
)

// record keeps a point of the history while no relay does, with figures that were seen anyway.
func (p *place) record(ctx context.Context, seen sight) {
	if p.office.History == nil || seen.Err != nil || seen.At.IsZero() || !p.recording.TryLock() {
		return
	}
	defer p.recording.Unlock()
	if time.Now().Before(p.recordAt) {
		return
	}
	p.recordAt = time.Now().Add(ops.PointEvery)
	if p.recorder == nil {
		p.recorder, _ = admin.NewHistory(p.office, consolePatience) // it has one
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	if _, err := p.recorder.Look(limited, func(context.Context) (ops.Status, error) { return seen.Status, nil }); err != nil {
		p.recordAt = time.Now().Add(recordAgain)
	}
}
