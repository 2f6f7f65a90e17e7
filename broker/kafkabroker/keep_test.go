package kafkabroker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestKeeps: Keeps returns how long a topic keeps messages.
func TestKeeps(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	client := direct(t, addr)
	sink, err := kafkabroker.NewSink(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for topic, c := range map[string]struct {
		config map[string]string
		want   broker.Keeping
	}{
		"keeps-month":   {map[string]string{"retention.ms": "2592000000"}, broker.Keeping{For: 720 * time.Hour, Setting: "retention.ms of topic keeps-month"}},
		"keeps-ever":    {map[string]string{"retention.ms": "-1"}, broker.Keeping{Setting: "retention.ms of topic keeps-ever"}},
		"keeps-compact": {map[string]string{"cleanup.policy": "compact"}, broker.Keeping{Setting: "cleanup.policy=compact of topic keeps-compact"}},
		"keeps-default": {nil, broker.Keeping{For: 168 * time.Hour, Setting: "retention.ms of topic keeps-default"}},
	} {
		if err := createOn(t.Context(), client, topic, 1, c.config); err != nil {
			t.Fatal(err)
		}
		if got, err := sink.Keeps(t.Context(), topic); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", topic, got, err, c.want)
		}
	}
	if _, err := sink.Keeps(t.Context(), "keeps-none"); err == nil {
		t.Error("no error for a missing topic")
	}
	nobody, err := kafkabroker.Open("kafka://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	if _, err := nobody.Keeps(t.Context(), "keeps-month"); err == nil || strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a broker that is down: %v; want an error that does not blame the topic", err)
	}
}
