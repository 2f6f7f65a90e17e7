package rabbitbroker

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestOneReasonOfARefusal: a message that was in flight when the broker refused the
// exchange and a later one that is held back have the same innermost error. A relay logs
// an outage's reason again only if that differs.
func TestOneReasonOfARefusal(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	s := &session{ended: ended, why: &amqp.Error{
		Code: amqp.AccessRefused, Reason: "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'relay'", Server: true,
	}}
	var r refusals
	now := time.Now()
	r.learn(s.because(), now)
	var reasons []string
	for _, err := range []error{s.because(), r.of("topic", "", now)} {
		for next := err; next != nil; next = errors.Unwrap(next) {
			err = next
		}
		reasons = append(reasons, err.Error())
	}
	if reasons[0] != reasons[1] {
		t.Errorf("two reasons:\n%s\n%s", reasons[0], reasons[1])
	}
}
