package redisbroker_test

import (
	"crypto/rand"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
	"github.com/postrider/postrider/internal/testserver"
)

// TestWireIsGolden: an independent client sees the entries of the golden files, byte for
// byte.
func TestWireIsGolden(t *testing.T) {
	t.Parallel()
	for _, version := range testserver.RedisVersions() {
		addr := testserver.SharedRedis(t, version).Addr
		for _, f := range envelope.Formats() {
			t.Run(version+"/"+f.String(), func(t *testing.T) { wireOf(t, addr, f) })
		}
	}
}

func wireOf(t *testing.T, addr string, f envelope.Format) {
	t.Helper()
	stream := "golden" + rand.Text()
	sink, err := redisbroker.Open("redis://"+addr, &redisbroker.SinkOptions{Route: golden.Router(stream, f)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	for _, m := range golden.Messages() {
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
	}
	var texts []string
	entries, _ := ask(t, addr, "XRANGE", stream, "-", "+").([]any)
	for _, e := range entries {
		fields := e.([]any)[1].([]any)
		var (
			hs      []envelope.Header
			payload string
		)
		for i := 0; i < len(fields); i += 2 {
			name, value := fields[i].(string), fields[i+1].(string)
			if name == "payload" {
				payload = value
				continue
			}
			hs = append(hs, envelope.Header{Name: name, Value: []byte(value)})
		}
		texts = append(texts, golden.Text(hs, []byte(payload)))
	}
	if err := golden.Compare("redis", f, texts...); err != nil {
		t.Error(err)
	}
}
