package rabbitbroker_test

import (
	"crypto/rand"
	"maps"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/testserver"
)

// TestAdvise: advice about queues that may lose messages.
func TestAdvise(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			url := testserver.SharedRabbitMQ(t, version).URL
			ch := channel(t, url)
			with := func(more amqp.Table) string {
				args := single()
				maps.Copy(args, more)
				return declare(t, ch, args)
			}
			fleeting := "q-" + strings.ToLower(rand.Text()[:12])
			if _, err := ch.QueueDeclare(fleeting, false, false, false, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
				t.Fatal(err)
			}
			topics := []string{"nowhere"}
			want := map[string]string{
				with(nil): "",
				with(amqp.Table{"x-max-length": 10, "x-overflow": "reject-publish"}): "",
				with(amqp.Table{"x-max-length-bytes": 1000}):                         "drops its oldest messages",
				with(amqp.Table{"x-message-ttl": 60000}):                             "drops messages after 60000 ms",
				with(amqp.Table{"x-expires": 3600000}):                               "is deleted when unused for 3600000 ms",
				declare(t, ch, nil):                                                  "is a classic queue",
				fleeting:                                                             "is not durable",
			}
			for topic := range want {
				topics = append(topics, topic)
			}
			found, err := open(t, url).Advise(t.Context(), topics)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range found {
				if text := want[a.Topic]; text == "" || !strings.Contains(a.What, text) || a.Why == "" || a.Fix == "" {
					t.Errorf("%+v, want %q", a, text)
				}
				delete(want, a.Topic)
			}
			for topic, text := range want {
				if text != "" {
					t.Errorf("%s: no advice says that it %s", topic, text)
				}
			}
			if q, err := channel(t, url).QueueDeclarePassive("nowhere", false, false, false, false, nil); err == nil {
				t.Errorf("the look has made %+v", q)
			}
		})
	}
}
