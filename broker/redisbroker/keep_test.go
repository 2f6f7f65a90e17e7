package redisbroker_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// TestKeeps: a stream is trimmed by age only when an entry is added, and by whole
// nodes, so the age of its oldest entry counts too.
func TestKeeps(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.Redis7).Addr
	quiet, busy := "quiet"+rand.Text(), "busy"+rand.Text()
	ask(t, addr, "XADD", quiet, "1700000000000-0", "payload", "x") // of 2023
	ask(t, addr, "XADD", busy+":1", "*", "payload", "x")
	for _, c := range []struct {
		params, topic string
		least, most   time.Duration
		why           string
	}{
		{"", quiet, 0, 0, "no max-age"},
		{"?maxlen=5", quiet, 0, 0, "no max-age"},
		{"?max-age=24h", "nowhere", 24 * time.Hour, 24 * time.Hour, "max-age"},
		{"?max-age=24h&partitions=2", busy, 24 * time.Hour, 24 * time.Hour, "max-age in the relay's URL, for stream " + busy},
		{"?max-age=24h", quiet, 365 * 24 * time.Hour, time.Since(time.UnixMilli(1_700_000_000_000)) + time.Hour, "the oldest entry of stream " + quiet},
	} {
		sink := open(t, "redis://"+addr+c.params)
		k, err := sink.Keeps(t.Context(), c.topic)
		if err != nil || k.For < c.least || k.For > c.most || k.Removes || !strings.Contains(k.Setting, c.why) {
			t.Errorf("%s of %s: %+v, %v; want %v to %v, %q", c.params, c.topic, k, err, c.least, c.most, c.why)
		}
	}
	ask(t, addr, "SET", "text"+quiet, "x")
	if k, err := open(t, "redis://"+addr+"?max-age=1h").Keeps(t.Context(), "text"+quiet); err == nil {
		t.Errorf("a key that is no stream keeps %+v", k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if k, err := open(t, "redis://127.0.0.1:1?max-age=1h").Keeps(ctx, quiet); err == nil {
		t.Errorf("nobody keeps %+v", k)
	}
}
