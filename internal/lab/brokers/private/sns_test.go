package private_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// TestSNS publishes to a topic, and requires what its queue gets: every record, and the
// records of each key in order, also after a kill of the server.
func TestSNS(t *testing.T) {
	t.Parallel()
	b, err := private.LaunchSNS(t.Context())
	if missing := (*testserver.MissingError)(nil); errors.As(err, &missing) {
		testserver.GiveUp(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Make(t.Context(), brokers.Topic{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	topics := &brokers.Topics{Addr: strings.TrimPrefix(u.Query().Get("endpoint"), "http://"), Account: u.Query().Get("account")}
	const keys, each = 5, 12
	for n := range each {
		var page []brokers.Message
		for k := range keys {
			page = append(page, brokers.Message{Key: fmt.Sprint("k", k), Payload: fmt.Appendf(nil, "k%d:%d", k, n)})
		}
		if err := topics.Publish(t.Context(), "lab.fifo", page); err != nil {
			t.Fatal(err)
		}
		if n == each/2 {
			if err := errors.Join(b.Kill(), b.Restart()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, err := b.Count(t.Context(), "lab"); err != nil || n != keys*each {
		t.Fatalf("counted %d of %d: %v", n, keys*each, err)
	}
	next := make(map[string]int)
	if err := b.Read(t.Context(), "lab", func(r brokers.Record) {
		key, n, _ := strings.Cut(string(r.Payload), ":")
		if n != fmt.Sprint(next[key]) {
			t.Errorf("%s: read %s, want %d", key, n, next[key])
		}
		next[key]++
	}); err != nil {
		t.Fatal(err)
	}
	if len(next) != keys || next["k0"] != each {
		t.Errorf("read %v", next)
	}
}
