package rabbitbroker

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// Codes of outages and rejections, beside the names of AMQP's own.
const (
	codeNoRoute      = "NO_ROUTE"             // no queue takes the routing key: bind or declare one
	codeNack         = "NACK"                 // a full queue, or one without a majority, refused the message: repair the queue
	codeBlocked      = "BLOCKED"              // an alarm blocks publishers: free memory or disk at the broker
	codeNoConfirm    = "NO_CONFIRM"           // no confirm came in time: check the queues of the routing key
	codeTooLarge     = "MESSAGE_TOO_LARGE"    // the payload is above max_message_size: raise it, or claim large payloads
	codeHeaders      = "HEADERS_TOO_LARGE"    // the headers do not fit a frame: send fewer
	codeRoutingKey   = "ROUTING_KEY_TOO_LONG" // the routing key is above 255 bytes: use a route with a shorter one
	codeAccess       = "ACCESS_REFUSED"       // the user lacks a permission, or the login was rejected: grant it
	codePrecondition = "PRECONDITION_FAILED"  // a queue or exchange has other arguments: see the error
)

var (
	errClosed     = errors.New("rabbitbroker: the sink is closed")
	errSessionEnd = errors.New("the connection ended before the message was confirmed")
	errNoConfirm  = errors.New("no confirm came in time")
	errReturned   = errors.New("the broker returned the message")
	errRefused    = errors.New("the broker refused the message (a full queue, or one without a majority)")
)

// codeName returns AMQP's name of a reply code.
func codeName(code int) string {
	switch code {
	case amqp.ContentTooLarge:
		return "CONTENT_TOO_LARGE"
	case amqp.NoRoute:
		return codeNoRoute
	case amqp.ConnectionForced:
		return "CONNECTION_FORCED"
	case amqp.AccessRefused:
		return codeAccess
	case amqp.NotFound:
		return "NOT_FOUND"
	case amqp.ResourceLocked:
		return "RESOURCE_LOCKED"
	case amqp.PreconditionFailed:
		return codePrecondition
	case amqp.FrameError:
		return "FRAME_ERROR"
	case amqp.ResourceError:
		return "RESOURCE_ERROR"
	case amqp.NotAllowed:
		return "NOT_ALLOWED"
	case amqp.InternalError:
		return "INTERNAL_ERROR"
	}
	return strconv.Itoa(code)
}

// replyCode returns the code of the broker's own reply, "" for other errors.
func replyCode(err error) string {
	var e *amqp.Error
	if errors.As(err, &e) && e.Server {
		return codeName(e.Code)
	}
	return ""
}

// notOpened returns the outage of a connection that cannot be opened, with the remedy
// if the broker gives a reason.
func notOpened(err error, s *Server) error {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return broker.Outage(fmt.Errorf("not connected: %w", err), "", "")
	}
	switch {
	case e.Code == amqp.AccessRefused && s.Certificate:
		err = fmt.Errorf("the broker has no user for our certificate: %w; add a user with the certificate's name (see the broker's ssl_cert_login_from), enable the plugin rabbitmq_auth_mechanism_ssl and the mechanism EXTERNAL, and check that the user may use virtual host %q", err, s.vhost())
	case e.Code == amqp.AccessRefused: // also when the broker closes the connection at the login without an answer
		err = fmt.Errorf("the broker refuses user %s: %w; check the user's name and password in the URL and that the user may use virtual host %q", s.user(), err, s.vhost())
	case e.Code == amqp.NotAllowed:
		err = fmt.Errorf("the broker refuses virtual host %q to user %s: %w; check the URL's path (empty is /), create it with rabbitmqctl add_vhost or allow it with set_permissions", s.vhost(), s.user(), err)
	default:
		err = fmt.Errorf("not connected: %w", err)
	}
	return broker.Outage(err, codeName(e.Code), "")
}

// ended returns the error of a consumer that the broker ended, with the remedy if the
// reason is known.
func ended(e *amqp.Error, queue string) error {
	err := fmt.Errorf("rabbitbroker: receive from queue %s: the broker ended the consumer: %w", queue, e)
	if e.Code == amqp.PreconditionFailed && ackTimeout.MatchString(e.Reason) {
		err = fmt.Errorf("%w; a message was held longer than the broker's consumer_timeout, and all unsettled messages are delivered again; keep handlers and retry delays below it, or raise it for the queue (x-consumer-timeout, or a policy with consumer-timeout)", err)
	}
	return err
}

// ackTimeout matches RabbitMQ's reason when consumer_timeout has passed: see
// https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
var ackTimeout = regexp.MustCompile(`delivery acknowledgement on channel \d+ timed out`)

// notChecked returns the outage of a destination whose check failed.
func notChecked(err error, what, name string) error {
	switch code := replyCode(err); code {
	case "NOT_FOUND":
		return broker.Outage(fmt.Errorf("%s %q does not exist; declare it, or correct the name: %w", what, name, err), code, name)
	case codeAccess:
		return broker.Outage(fmt.Errorf("the user lacks the permission for %s %q; grant it: %w", what, name, err), code, name)
	default:
		return broker.Outage(fmt.Errorf("check %s %q: %w", what, name, err), code, name)
	}
}

// returned classifies a message that no queue took. Without an exchange its
// queue is missing, which is an outage of the topic. With an exchange no binding
// matches the message's routing key, which is a rejection of the message.
func returned(r *amqp.Return) error {
	err := fmt.Errorf("%w: %s", errReturned, r.ReplyText)
	if r.Exchange == "" {
		return broker.Outage(fmt.Errorf("%w; declare queue %q", err, r.RoutingKey), codeNoRoute, r.RoutingKey)
	}
	return broker.Rejected(fmt.Errorf("%w; bind a queue to the exchange for routing key %q", err, r.RoutingKey), codeNoRoute, r.Exchange)
}

// nacked classifies a message that the broker refused. Queues refuse when they
// are full (overflow reject-publish) or have no majority: neither is about the message.
func nacked(destination string) error {
	return broker.Throttled(errRefused, codeNack, destination, 0)
}

// blockedFor is the pause after a memory or disk alarm of the broker.
const blockedFor = time.Second

func blocked(reason string) error {
	return broker.Throttled(fmt.Errorf("the broker has blocked publishers: %s", reason), codeBlocked, "", blockedFor)
}

var sizeLimit = regexp.MustCompile(`message size \d+ is larger than configured max size (\d+)`)

// learnedLimit returns the size limit in a reply, or 0.
func learnedLimit(err error) int {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return 0
	}
	m := sizeLimit.FindStringSubmatch(e.Reason)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}
