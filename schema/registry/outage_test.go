package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRegistryKilled: the registry is killed in the middle of a drain, while messages with a
// schema that nobody has asked for come. None is lost, none is dead, none is sent twice or out
// of order, no attempt is counted, and the log has one line. In the matrix it is away
// for five minutes.
func TestRegistryKilled(t *testing.T) {
	away := 3 * time.Second
	if os.Getenv("POSTRIDER_MATRIX") != "" {
		away = 5 * time.Minute
	}
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: avro})
	fake.SeedSchema("orders-value", 2, 2, sr.Schema{Schema: avro})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve := func(l net.Listener) *http.Server {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			resp, err := http.Get(fake.URL() + r.URL.Path)
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		})}
		go func() { _ = s.Serve(l) }()
		return s
	}
	server := serve(l)
	c := open(t, "http://"+l.Addr().String(), nil)
	to := &sent{wire: wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}}
	st, log := memstore.New(nil), &lines{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- relay.New(st, c.Sink(to), &relay.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}).Run(ctx)
	}()
	written := 0
	write := func(n int, version int32) {
		for range n {
			m := message("", fmt.Sprint("k", written%7), "order.placed", version)
			m.Payload = fmt.Append(nil, written)
			if err := st.Enqueue(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			written++
		}
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain until %s; %d of %d sent\n%s", what, to.count(), written, log)
			}
		}
	}
	write(200, 1)
	until("the drain has begun", func() bool { return to.count() > 0 })
	_ = server.Close()
	write(100, 1)
	write(200, 2)
	until("the outage is in the log", func() bool { return strings.Contains(log.String(), "destination unavailable") })
	for end := time.Now().Add(away); time.Now().Before(end); time.Sleep(away / 100) {
		write(1, 1+int32(written%2)) // more come meanwhile
	}
	before := to.count()
	if l, err = net.Listen("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	server = serve(l)
	defer server.Close()
	until("all is sent", func() bool { return to.count() >= written })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	parked, err := st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Limit: 10})
	if err != nil || len(parked) != 0 {
		t.Errorf("%d dead, %v", len(parked), err)
	}
	for key, numbers := range to.keys {
		for i := 1; i < len(numbers); i++ {
			if numbers[i] <= numbers[i-1] {
				t.Fatalf("key %s: %d behind %d", key, numbers[i], numbers[i-1])
			}
		}
	}
	if n := strings.Count(log.String(), "destination unavailable"); n != 1 || to.count() != written || strings.Contains(log.String(), "attempt=") {
		t.Errorf("%d lines, %d of %d sent\n%s", n, to.count(), written, log)
	}
	t.Logf("away for %s: %d written, %d sent when it came back, %d in the end", away, written, before, to.count())
}

// sent is a wire that many goroutines use, with the numbers of each key.
type sent struct {
	mu   sync.Mutex
	wire wire
	keys map[string][]int
	n    int
}

func (s *sent) Info() broker.Info { return s.wire.Info() }

func (s *sent) Deliver(ctx context.Context, batch broker.Batch) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := s.wire.Deliver(ctx, batch)
	if s.keys == nil {
		s.keys = map[string][]int{}
	}
	for i, m := range batch.Messages {
		var number int
		if _, err := fmt.Sscan(string(m.Payload), &number); err == nil && (errs == nil || errs[i] == nil) {
			s.keys[m.Key] = append(s.keys[m.Key], number)
			s.n++
		}
	}
	return errs
}

func (s *sent) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}
