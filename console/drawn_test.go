package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// Where numbers begin anew, as a change of partitions makes them, nobody knows what came in: the line has a
// gap, and no rate but that of the messages.
func TestNumbersThatBeginAnewAreNoRate(t *testing.T) {
	r := newRig(t, "", nil)
	office := *memstore.New(nil).Office()
	h := &past{}
	now := time.Now()
	for i := range 600 {
		p := ops.Point{At: now.Add(-time.Duration(600-i) * time.Minute), Delivered: int64(i * 60), Pending: 2000, Capped: true, Drawn: int64(40_000 + i*60)}
		if i >= 300 {
			p.Drawn = int64(1 + (i-300)*60)
		}
		h.all = append(h.all, p)
	}
	office.History = h
	c := console.New([]console.Outbox{{Name: "shop", Store: memstore.New(nil), Office: &office}}, &console.Options{
		Authenticate: func(_ *http.Request) (console.User, error) {
			return console.User{Name: "ann", Role: console.Viewer}, nil
		},
	})
	t.Cleanup(c.Close)
	r.serve(c)
	_, body := r.get("/o/shop/?span=2d")
	_, path, _ := strings.Cut(body, `data-path="rate-in" d="`)
	path, _, _ = strings.Cut(path, `"`)
	if n := strings.Count(path, "M"); n != 2 {
		t.Errorf("the line has %d parts, want 2: %.300s", n, path)
	}
}
