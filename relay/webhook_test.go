package relay_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// receiver answers 500 to one payload and takes everything else.
type receiver struct {
	mu     sync.Mutex
	failed int
	took   []string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.Contains(string(body), "breaks") {
		r.failed++
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.took = append(r.took, string(body))
}

func (r *receiver) counts() (failed, took int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed, len(r.took)
}

// TestAWebhookGoesOnBehindAMessageThatBreaksIt: a webhook whose receiver answers 500 to one
// message continues with later ones of the same lane, although at first it had no other to
// compare with. Beside them the message uses up its attempts and becomes a dead letter.
//
// Promises: S
func TestAWebhookGoesOnBehindAMessageThatBreaksIt(t *testing.T) {
	hook := &receiver{}
	server := httptest.NewServer(hook)
	defer server.Close()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := httpbroker.ParseEndpoint(server.URL, url.Values{
		"name": {"hook"}, "unsigned": {"true"}, "allow": {"127.0.0.0/8"}, "ports": {to.Port()},
	})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := httpbroker.NewSink([]httpbroker.Endpoint{endpoint}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	st := memstore.New(&memstore.Options{Lanes: 1})
	write := func(key, payload string) {
		tx := st.Begin()
		if err := tx.Enqueue(postrider.Message{Topic: "orders", Key: key, Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, relay.New(st, sink, &relay.Options{
		OutageMax: 500 * time.Millisecond, Retry: relay.Retry{Base: 10 * time.Millisecond, Max: 100 * time.Millisecond, MaxAttempts: 3},
	}))
	defer stop()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				failed, took := hook.counts()
				t.Fatalf("%s: not within a minute; the receiver failed %d times and took %d messages", what, failed, took)
			}
		}
	}
	write("a", "breaks")
	until("the first message fails several times", func() bool { failed, _ := hook.counts(); return failed >= 5 })
	write("b", "one")
	write("c", "two")
	until("the others are delivered", func() bool { _, took := hook.counts(); return took == 2 })
	until("the message is a dead letter", func() bool {
		write("d", "more")
		recs, err := st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
		if err != nil {
			t.Fatal(err)
		}
		return len(recs) == 1 && recs[0].State == store.Dead && recs[0].Attempts == 3
	})
}
