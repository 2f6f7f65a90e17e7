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
	// Server names what the cases run on, with its version and what is special
	// about it, for the list of docs/conformance.md. "": it is not listed.
	Server string
	// Sink is the sink under test; Topic exists and is empty.
	Sink  broker.Sink
	Topic string
	// Missing is a topic that does not exist; "" if every topic does.
	Missing string
	// TooLarge is a payload size that the broker refuses; 0: there is none.
	TooLarge int
	// Largest is a payload size that the broker must take, near its limit.
	Largest int
	// Log returns everything that the topic holds, in the order of acceptance
	// per key. It must not use the code under test.
	Log func(ctx context.Context) ([]postrider.Message, error)
	// LogOf is Log of a topic that Operator has made. nil: Operator is not used.
	LogOf func(ctx context.Context, topic string) ([]postrider.Message, error)
	// Operator changes what the broker has. What is nil there cannot be done.
	Operator Operator
	// Faults breaks what is between Sink and the broker. nil: it cannot be done.
	// One that is a LineFaults too makes more cases apply.
	Faults Faults
	// Second is the sink of another process, which Faults does not touch; nil:
	// there can be none.
	Second broker.Sink
	// Stop ends the process of Sink, as far as the sink can see: its client is
	// closed. nil: it has none.
	Stop func()
	// Source opens a receiver of Topic for the one named consumer of this Env;
	// closing it is what the end of a process is. nil: no source.
	Source func(ctx context.Context) (src broker.Source, close func(), err error)
	// Mortal is Source, but its end is that of a process that was killed: the
	// broker is not told. nil: it cannot be done.
	Mortal func(ctx context.Context) (src broker.Source, kill func(), err error)
	// Flaky is Source behind faults of its own. nil: it cannot be done.
	Flaky func(ctx context.Context) (src broker.Source, faults Faults, close func(), err error)
	// Foreign puts a record into Topic as somebody else does: this payload, and
	// nothing of what Postrider writes beside it. nil: it cannot be done.
	Foreign func(ctx context.Context, payload []byte) error
	// Beside is another topic that Log returns too, because the broker keeps both in
	// one place and compares the ids of both; "": no two topics share a place.
	Beside string
	// Routed is a sink beside Sink that sends where and how route says.
	Routed func(ctx context.Context, route envelope.Router) (broker.Sink, error)
	// Without names the cases that do not apply to this broker, each with the
	// reason; a name that ends in "/" is a group of them. Run fails for a case that
	// does not apply and is not named, and for one that is named and applies.
	Without map[string]string
	// PerKey is how many messages of one key the source hands out before it wants
	// some of them settled, as one that locks a group of messages does; 0: any number.
	PerKey int
	// Shared says that each of several sources of one name gets a part of the log.
	Shared bool
}

// Operator is what a person can do to a broker, done by the broker's own means.
// Whatever the broker offers is worth filling in; each function makes its case
// apply.
type Operator struct {
	// Make makes a topic, just now: no sink has heard of it.
	Make func(ctx context.Context) (topic string, err error)
	// MakeSmall makes a topic for which the broker refuses payloads of limit
	// bytes and takes those of limit/4, although Sink cannot know it beforehand.
	MakeSmall func(ctx context.Context) (topic string, limit int, err error)
	// Delete deletes a topic and returns when the broker knows; Again makes it
	// anew, empty. What is deleted is what the sink writes to: an exchange, not
	// a queue behind it.
	Delete func(ctx context.Context, topic string) error
	Again  func(ctx context.Context, topic string) error
	// Fill makes a topic take no more, as a full queue, stream or disk does,
	// until drain is called. What the topic holds may be gone then.
	Fill func(ctx context.Context, topic string) (drain func(context.Context) error, err error)
	// Revoke takes Sink's right to write to topic away, until grant is called.
	Revoke func(ctx context.Context, topic string) (grant func(context.Context) error, err error)
}

// Faults breaks connections. New connections are refused or muted like those
// that exist, until Restore ends everything.
type Faults interface {
	// Cut breaks the connections after n more bytes of requests.
	Cut(n int)
	// CutAnswer breaks the connections after n more bytes of answers.
	CutAnswer(n int)
	// Mute keeps back all answers: the connections are half-open.
	Mute()
	// Freeze keeps back requests and answers: the broker accepts connections
	// and does nothing.
	Freeze()
	// Restore ends the fault. What was kept back flows on.
	Restore()
}

// LineFaults are more Faults, which Restore ends too.
type LineFaults interface {
	// Reset breaks the connections that exist; new ones are let in at once.
	Reset()
	// Strand makes the connections that exist half-open for ever: the broker
	// has seen their end, the client sees nothing. New ones are sound.
	Strand()
	// Slow delays everything by latency and lets so many bytes pass each way per
	// second, 0 for no limit.
	Slow(latency time.Duration, bytesPerSecond int)
	// FreezeAfter is Freeze after n more bytes of requests.
	FreezeAfter(n int)
	// HangUp breaks each connection on which these bytes are sent, before they
	// arrive.
	HangUp(poison []byte)
}
