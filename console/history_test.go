package console_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// past is a history that holds what it is given.
type past struct {
	mu   sync.Mutex
	all  []ops.Point
	fail error
	kept int
}

func (p *past) Keep(context.Context, ops.Point) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept++
	return p.fail == nil, p.fail
}

func (p *past) Points(_ context.Context, since time.Time, _ time.Duration) (found []ops.Point, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if !one.At.Before(since) {
			found = append(found, one)
		}
	}
	return found, p.fail
}

// shown returns a console whose one outbox has that history.
func (p *past) shown(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, "", nil)
	office := *memstore.New(nil).Office()
	office.History = p
	c := console.New([]console.Outbox{{Name: "shop", Store: memstore.New(nil), Office: &office}}, &console.Options{
		Authenticate: func(_ *http.Request) (console.User, error) {
			return console.User{Name: "ann", Role: console.Viewer}, nil
		},
	})
	t.Cleanup(c.Close)
	r.serve(c)
	return r
}

// line returns the path of a chart's line.
func line(body, name string) string {
	_, path, _ := strings.Cut(body, `data-path="`+name+`" d="`)
	path, _, _ = strings.Cut(path, `"`)
	return path
}

// Charts of two days and of five weeks show what the store has kept, with a gap where nobody
// looked, and the choice leads from one to the other.
func TestChartsShowHistory(t *testing.T) {
	h := &past{}
	now := time.Now()
	for i := range 2000 {
		at := now.Add(-time.Duration(2000-i) * time.Minute)
		if i > 800 && i < 1200 { // nobody looked
			continue
		}
		h.all = append(h.all, ops.Point{At: at, Lag: 4 * time.Second, Delivered: int64(i * 60), Dead: 3, Blocked: 2, Drawn: int64(i * 60)})
	}
	r := h.shown(t)
	_, body := r.get("/o/shop/?span=2d")
	for _, want := range []string{`aria-current="true">2 d<`, `data-events="./../../o/shop/events?span=2d"`, `href="?span=5w"`, `data-path="stuck-keys" d="M`} {
		if !strings.Contains(body, want) {
			t.Errorf("the overview has no %q", want)
		}
	}
	path := line(body, "lag-lag")
	if n := strings.Count(path, "M"); n != 2 {
		t.Errorf("the line has %d parts, want 2: %.300s", n, path)
	}
	if n := strings.Count(path, "L"); n < 200 || n > 480 {
		t.Errorf("the line has %d points, want at most 480", n)
	}
	if !strings.Contains(body, ">1/s<") && !strings.Contains(body, ">1.0<") && !strings.Contains(body, ">1<") {
		t.Errorf("no rate of 1 message a second is shown:\n%s", body)
	}
	_, body = r.get("/o/shop/")
	if !strings.Contains(body, `aria-current="true">15 min<`) {
		t.Errorf("the first chart is not that of 15 minutes:\n%s", body)
	}
	if _, body = r.get("/o/shop/?span=%3Cscript%3E"); strings.Contains(body, "<script>") || !strings.Contains(body, `aria-current="true">15 min<`) {
		t.Errorf("an unknown span is no answer:\n%s", body)
	}
	h.mu.Lock()
	h.fail = errors.New("no SELECT")
	h.mu.Unlock()
	if status, _ := r.get("/o/shop/?span=5w"); status != 200 {
		t.Errorf("without its history the page has status %d", status)
	}
}

// A change of partitions passes over numbers, so the difference of two numbers is no count of messages there: the
// line has a gap.
func TestNumbersThatBeginAnewAreNoRate(t *testing.T) {
	h := &past{}
	now := time.Now()
	for i := range 600 {
		p := ops.Point{At: now.Add(-time.Duration(600-i) * time.Minute), Delivered: int64(i * 60), Pending: 2000, Capped: true, Drawn: int64(40_000 + i*60)}
		if i >= 300 {
			p.Drawn = int64(1 + (i-300)*60)
		}
		h.all = append(h.all, p)
	}
	r := h.shown(t)
	_, body := r.get("/o/shop/?span=2d")
	path := line(body, "rate-in")
	if n := strings.Count(path, "M"); n != 2 {
		t.Errorf("the line has %d parts, want 2: %.300s", n, path)
	}
}

// A store without a history offers what this process has seen.
func TestChartsWithoutHistory(t *testing.T) {
	r := newRig(t, "", nil)
	if _, body := r.get("/o/shop/"); strings.Contains(body, "5 weeks") || !strings.Contains(body, ">2 h<") {
		t.Errorf("memory offers\n%s", body)
	}
}
