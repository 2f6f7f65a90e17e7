package open

import (
	"iter"
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

// TestDoorAndSinkAgree: the door tells an application what the relay would find. The
// door accepts every message that a sink would send. A message that a sink refuses
// before it sends, the door refuses too, unless it exceeds a limit by less than the
// size of its headers.
func TestDoorAndSinkAgree(t *testing.T) {
	rule := func(typ string, f envelope.Format, topic, key string) config.Rule {
		return config.Rule{Formatted: true, Rule: route.Rule{Match: route.Match{Type: typ}, Format: f, Topic: topic, Key: key}}
	}
	rules := []config.Rule{
		rule("event", envelope.CloudEvents, "", ""), rule("structured", envelope.CloudEventsStructured, "", ""), rule("raw", envelope.Raw, "", ""),
		rule("debezium", envelope.Debezium, "", ""), rule("twice", envelope.Plain, "{topic}{topic}", "{key}{key}"), rule("plain", envelope.Plain, "", ""),
	}
	for url, prefix := range map[string]string{
		"kafka://h:1": "", "kafka://h:1?prefix=prod.&max-message-bytes=20000": "prod.", "nats://127.0.0.1:1?prefix=p.": "p.",
		"amqp://h:1": "", "amqp://h:1?exchange=e&routing-key=key&max-message-bytes=20000": "", "redis://h:1?prefix=s:&partitions=3&max-message-bytes=20000": "s:",
		"sqs://r": "", "sqs://r?prefix=prod-&max-message-bytes=20000": "prod-", "sqs://r?type=standard": "", "sns://r?account=123456789012": "", "sns://r?account=123456789012&type=standard&prefix=prod-": "prod-",
		"pubsub://my-project": "", "pubsub://my-project?prefix=prod-": "prod-",
		"memory:": "", "http://h/#unsigned=true&insecure=true": "",
	} {
		set := &Settings{Broker: url, Format: "plain", Routes: rules}
		sink, err := Sink(set)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sink.Close)
		table, err := set.Table()
		if err != nil {
			t.Fatal(err)
		}
		preview := sink.Info().Preview
		door := &route.Door{Route: table.Route, Info: sink.Info(), Prefix: prefix}
		refused := 0
		for m := range doorSamples() {
			_, atSink := preview("main", m)
			atDoor := door.Check(m)
			if atDoor != nil {
				refused++
			}
			if near := len(m.Payload) > 1000 && len(m.Payload) < 40_000; atDoor != nil && atSink == nil || atDoor == nil && atSink != nil && !near {
				t.Errorf("%s: topic of %d, key of %d, type %q, %d headers, payload of %d:\nthe door says %v\nthe sink says %v",
					url, len(m.Topic), len(m.Key), m.Type, len(m.Headers), len(m.Payload), atDoor, atSink)
			}
		}
		if refused == 0 {
			t.Errorf("%s: the door refuses nothing", url)
		}
	}
}

// doorSamples are valid messages, many of them at a limit of some broker.
func doorSamples() iter.Seq[*postrider.Message] {
	long := func(n int) string { return strings.Repeat("x", n) }
	headers := map[string]string{}
	for i := range postrider.MaxHeaders {
		headers[long(180)+strconv.Itoa(i)] = "v"
	}
	return func(yield func(*postrider.Message) bool) {
		const id = "01890a5d-ac96-774b-bcce-b302099a8057"
		for _, typ := range []string{"event", "structured", "raw", "debezium", "twice", "plain", "no rule"} {
			for _, payload := range []int{0, 14_000, 19_900, 20_000, 20_001, 40_000} {
				if !yield(&postrider.Message{ID: id, Topic: "t", Key: "k", Type: typ, Headers: headers, Payload: make([]byte, payload)}) {
					return
				}
			}
			for _, topic := range []string{"t", "with space", "с", ".", "a/b", long(120), long(125), long(130), long(244), long(250), long(255)} {
				for _, key := range []string{"", "k", "к л", "\x01", long(127), long(128), long(255), long(256), long(512)} {
					if !yield(&postrider.Message{ID: id, Topic: topic, Key: key, Type: typ}) {
						return
					}
				}
			}
		}
	}
}
