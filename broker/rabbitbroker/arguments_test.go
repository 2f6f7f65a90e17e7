package rabbitbroker_test

import (
	"crypto/rand"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestALookMakesNoQueue: finding out the arguments of a queue that has vanished does not
// create it.
func TestALookMakesNoQueue(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			c, err := amqp.Dial(testserver.SharedRabbitMQ(t, version).URL)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			queue := "vanished-" + rand.Text()
			if args, err := rabbitbroker.FindArguments(c, queue); err == nil {
				t.Errorf("a queue that is not there has the arguments %v", args)
			}
			if err := rabbitbroker.CheckQueue(c, queue); err == nil {
				t.Error("the look has made the queue")
			}
		})
	}
}
