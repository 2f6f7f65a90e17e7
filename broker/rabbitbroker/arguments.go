package rabbitbroker

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// AMQP has no request for a queue's arguments, but it compares them: declaring
// an existing queue with different arguments is refused, and the refusal names one
// different argument and its present value. So they are found one after the other. Each
// try has an argument that is invalid for a new queue and that an existing queue of this
// kind does not compare: if the queue has vanished meanwhile, it is not created.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for queue .*: received (.*) but current is (.*)$`)

var current = regexp.MustCompile(`^the value '(.*)' of type '([a-z]+)'$`)

// argumentsMost bounds the number of arguments that are found out.
const argumentsMost = 24

// guards returns arguments with values that are invalid for a new queue of any kind. Each
// kind of existing queue ignores at least one of them.
func guards() amqp.Table {
	return amqp.Table{"x-max-priority": "none", "x-delivery-limit": "none"}
}

var (
	errNotSingle = errors.New("it has no single active consumer: two sources would share its messages and break the order of keys")
	errVanishes  = errors.New("it drops a message after x-delivery-limit deliveries (20 by default), and has no dead letter exchange")
	errClassic   = errors.New("it is not durable, or differs from its arguments")
)

// checkArguments refuses a queue that would break the order of keys or lose
// messages.
func checkArguments(c *amqp.Connection, queue string) error {
	args, err := findArguments(c, queue)
	if err != nil {
		return err
	}
	bad := func(why error, fix string) error {
		return broker.Outage(fmt.Errorf("queue %q cannot be consumed safely: %w; %s, or open the source unchecked if a policy of the broker does it", queue, why, fix), codePrecondition, queue)
	}
	if args["x-single-active-consumer"] != true {
		return bad(errNotSingle, "declare it with x-single-active-consumer=true")
	}
	limit, limited := args["x-delivery-limit"]
	endless := !limited && major(c) < 4 || fmt.Sprint(limit) == "-1"
	if args["x-queue-type"] == "quorum" && !endless && args["x-dead-letter-exchange"] == nil {
		return bad(errVanishes, "declare it with x-delivery-limit=-1 or x-dead-letter-exchange")
	}
	return nil
}

// findArguments returns the arguments that a queue was declared with.
func findArguments(c *amqp.Connection, queue string) (amqp.Table, error) {
	args := amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
	guard := guards()
	for range argumentsMost {
		asked := maps.Clone(args)
		maps.Copy(asked, guard)
		ch, err := c.Channel()
		if err != nil {
			return nil, broker.Outage(fmt.Errorf("no channel: %w", err), replyCode(err), "")
		}
		_, err = ch.QueueDeclare(queue, true, false, false, false, asked)
		if err == nil {
			_ = ch.Close()
			return args, nil
		}
		var e *amqp.Error
		switch {
		case !errors.As(err, &e):
			return nil, notChecked(err, "queue", queue)
		case e.Code == amqp.AccessRefused:
			return nil, broker.Outage(fmt.Errorf("queue %q: read its arguments: the user lacks the configure permission; grant it, or open the source unchecked: %w", queue, err), replyCode(err), queue)
		case e.Code != amqp.PreconditionFailed:
			return nil, notChecked(err, "queue", queue)
		}
		m := inequivalent.FindStringSubmatch(e.Reason)
		if m == nil || !strings.HasPrefix(m[1], "x-") {
			return nil, broker.Outage(fmt.Errorf("queue %q: %w: %w", queue, errClassic, err), replyCode(err), queue)
		}
		delete(args, m[1])
		delete(guard, m[1]) // this kind of queue compares the guard
		if len(guard) == 0 {
			return nil, broker.Outage(fmt.Errorf("queue %q: its kind is unknown, and so are its arguments", queue), "", queue)
		}
		if v := current.FindStringSubmatch(m[3]); v != nil {
			args[m[1]] = value(v[1], v[2])
		}
	}
	return nil, broker.Outage(fmt.Errorf("queue %q: its arguments are unknown", queue), "", queue)
}

// value parses the broker's text of an argument.
func value(text, kind string) any {
	switch kind {
	case "bool":
		return text == "true"
	case "longstr":
		return text
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

// major returns the broker's major version, 0 if unknown.
func major(c *amqp.Connection) int {
	version, _ := c.Properties["version"].(string)
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}
