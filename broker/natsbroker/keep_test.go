package natsbroker_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// TestKeeps: Keeps returns how long a stream keeps messages.
func TestKeeps(t *testing.T) {
	nc := connect(t, embedded(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	for topic, c := range map[string]struct {
		jetstream.StreamConfig
		want broker.Keeping
	}{
		"ever":  {jetstream.StreamConfig{}, broker.Keeping{Setting: "MaxAge of stream ever"}},
		"month": {jetstream.StreamConfig{MaxAge: 720 * time.Hour}, broker.Keeping{For: 720 * time.Hour, Setting: "MaxAge of stream month"}},
		"queue": {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, broker.Keeping{Removes: true, Setting: "the retention policy of stream queue"}},
	} {
		c.Name, c.Subjects = topic, []string{topic + ".>"}
		if _, err := js.CreateStream(t.Context(), c.StreamConfig); err != nil {
			t.Fatal(err)
		}
		if got, err := sink.Keeps(t.Context(), topic+".x"); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", topic, got, err, c.want)
		}
	}
	if _, err := sink.Keeps(t.Context(), "none"); err == nil {
		t.Error("no error for a topic without a stream")
	}
}
