package brokertest

import (
	"context"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// Env is a broker under test. Each case gets a fresh one: its topic is empty
// and its consumers have received nothing. Cases run at the same time, so two
// Envs must not disturb each other.
type Env struct {
	// Server names the server of the cases, with its version and special
	// settings, for the list of docs/conformance.md. "": it is not listed.
	Server string
	// Sink is the sink under test; Topic exists and is empty.
	Sink  broker.Sink
	Topic string
	// Missing is a topic that does not exist; "" if every topic does.
	Missing string
	// TooLarge is a payload size that the broker refuses; 0: no limit.
	TooLarge int
	// Largest is a payload size that the broker must take, near its limit.
	Largest int
	// Log returns everything that the topic holds, in the order of acceptance
	// per key. It must not use the code under test.
	Log func(ctx context.Context) ([]postrider.Message, error)
	// LogOf is Log of a topic that Operator has made. nil: Operator is not used.
	LogOf func(ctx context.Context, topic string) ([]postrider.Message, error)
	// Operator changes the broker's topics and rights. A nil function is not available.
	Operator Operator
	// Faults breaks the line between Sink and the broker. nil: not available.
	// A value that is a LineFaults too makes more cases apply.
	Faults Faults
	// Second is the sink of another process, which Faults does not touch. nil:
	// not available.
	Second broker.Sink
	// Stop ends the process of Sink from the sink's point of view: it closes the
	// client. nil: the sink has none.
	Stop func()
	// Source opens a receiver of Topic for the named consumer of this Env;
	// close acts like the end of its process. nil: no source.
	Source func(ctx context.Context) (src broker.Source, close func(), err error)
	// Mortal is Source, but kill acts like a killed process: the
	// broker is not told. nil: not available.
	Mortal func(ctx context.Context) (src broker.Source, kill func(), err error)
	// Flaky is Source behind faults of its own. nil: not available.
	Flaky func(ctx context.Context) (src broker.Source, faults Faults, close func(), err error)
	// Foreign writes a record into Topic like another program: this payload, without
	// Postrider's headers. nil: not available.
	Foreign func(ctx context.Context, payload []byte) error
	// Beside is another topic whose messages Log returns too, because the broker keeps both
	// in one place and compares the ids of both; "": no two topics share a place.
	Beside string
	// Routed returns another sink that uses route.
	Routed func(ctx context.Context, route envelope.Router) (broker.Sink, error)
	// Without names the cases that do not apply to this broker, each with the
	// reason; a name that ends in "/" is a group. Run fails for a case that
	// does not apply and is not named, and for a named case that applies.
	Without map[string]string
	// PerKey is the number of messages of one key that the source hands out before
	// some must be settled, for sources that lock a group of messages; 0: any number.
	PerKey int
	// Shared reports whether several sources of one name share the log.
	Shared bool
}

// Operator has a person's actions on a broker, carried out by the broker's own means.
// Fill in whatever the broker offers; each function makes its case
// apply.
type Operator struct {
	// Make creates a topic that no sink knows yet.
	Make func(ctx context.Context) (topic string, err error)
	// MakeSmall makes a topic for which the broker refuses payloads of limit
	// bytes and takes those of limit/4, although Sink cannot know it beforehand.
	MakeSmall func(ctx context.Context) (topic string, limit int, err error)
	// Delete deletes a topic and returns when the broker has done it; Again creates it
	// again, empty. It deletes the destination of the sink's messages: an exchange, not
	// a queue behind it.
	Delete func(ctx context.Context, topic string) error
	Again  func(ctx context.Context, topic string) error
	// Fill makes a topic refuse messages, like a full queue, stream or disk,
	// until drain is called, which may remove the topic's messages.
	Fill func(ctx context.Context, topic string) (drain func(context.Context) error, err error)
	// Revoke takes Sink's right to write to topic away, until grant is called.
	Revoke func(ctx context.Context, topic string) (grant func(context.Context) error, err error)
}

// Faults breaks connections. New connections are refused or muted like existing
// ones, until Restore ends the fault.
type Faults interface {
	// Cut breaks the connections after n more bytes of requests.
	Cut(n int)
	// CutAnswer breaks the connections after n more bytes of answers.
	CutAnswer(n int)
	// Mute holds all answers back: the connections are half-open.
	Mute()
	// Freeze holds requests and answers back: the broker accepts connections
	// and does nothing.
	Freeze()
	// Restore ends the fault. Bytes that were held back arrive.
	Restore()
}

// LineFaults has further faults, which Restore ends too.
type LineFaults interface {
	// Reset breaks existing connections; new ones are accepted at once.
	Reset()
	// Strand makes existing connections half-open for ever: the broker
	// has seen their end, the client has not. New ones work.
	Strand()
	// Slow delays all bytes by latency and limits the bytes per second in each
	// direction, 0 for no limit.
	Slow(latency time.Duration, bytesPerSecond int)
	// FreezeAfter is Freeze after n more bytes of requests.
	FreezeAfter(n int)
	// HangUp breaks each connection on which these bytes are sent, before they
	// arrive.
	HangUp(poison []byte)
}
