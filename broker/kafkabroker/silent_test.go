package kafkabroker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
)

// TestSourceWithoutABroker: a source reports unreachable brokers, and continues when
// they are back.
func TestSourceWithoutABroker(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	if errs := sinkOn(t, c.ListenAddrs(), 0).Deliver(t.Context(), broker.Batch{Messages: some(0, 1, "a")}); errs != nil {
		t.Fatal(errs)
	}
	proxy, through := proxied(t, c.ListenAddrs()[0])
	proxy.Cut(0)
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), through}, &kafkabroker.SourceOptions{
		Group: "g", Topics: []string{"orders"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := src.Receive(ctx, 1); err == nil || !strings.Contains(err.Error(), "no broker answers") {
		t.Fatalf("without a broker the answer is %v", err)
	}
	proxy.Restore()
	for {
		ds, err := src.Receive(ctx, 1)
		if ctx.Err() != nil {
			t.Fatalf("nothing has come after a minute: %v", err)
		}
		if len(ds) == 1 {
			return
		}
	}
}
