// Package broker is the contract a broker must keep: a Sink that publishes with
// an answer per message, and a Source that receives. The rules that are written
// with "must" here are the cases of package brokertest.
package broker

import (
	"context"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Sink publishes messages. Its methods are safe for concurrent use; two calls
// that run at once never hold messages of the same key.
type Sink interface {
	// Deliver blocks until the broker has acknowledged or refused every
	// message, its fate is unknown, or ctx ends. nil means that all were
	// acknowledged; otherwise the result has one entry per message, nil for the
	// acknowledged ones. A message whose fate is unknown must have an error.
	//
	// The prefix property: once a message of a key has failed or is unknown, no
	// later message of that key is accepted by the broker from this call, also
	// not after the call has returned. Errors carry their class by the
	// wrappers of this package; an unclassified one counts as Failed, a context
	// error as Unknown. Messages must not be changed or kept after the return.
	Deliver(ctx context.Context, msgs []postrider.Message) []error
	// Info is what is known of the sink. It does no I/O. A server may tell a limit
	// only later: then Info gets stricter, and Deliver rejects what whoever read it
	// before lets through.
	Info() Info
}

// Info says what a sink is and can do. Zero limits mean none known.
type Info struct {
	Name            string        // "kafka", "nats", "memory"
	MaxBatch        int           // messages per call
	MaxBatchBytes   int           // Message.Size summed per call
	MaxMessageBytes int           // per message; Deliver rejects larger ones, by the limit of that moment
	DedupWindow     time.Duration // for how long the broker itself drops a repeated ID
	Fencing         bool          // a zombie's messages are refused by the broker

	// What a message must keep to on this broker besides, so that it can be
	// checked before it is written.
	MaxTopicBytes  int                     // of a destination, prefix and all
	TopicProblem   func(name string) error // what is wrong with a destination's name; nil: nothing
	MaxKeyBytes    int                     // of the broker's own key
	MaxHeaders     int                     // headers per message
	MaxHeaderBytes int                     // names and values of all headers
	Codec          envelope.Codec          // how messages look there
}

// Source receives messages for one named consumer. Its methods are safe for
// concurrent use.
type Source interface {
	// Receive blocks until at least one delivery is there or ctx ends, and
	// returns at most limit deliveries. Messages of one key are returned in the
	// order of the broker's log; a delivery of a key whose earlier delivery was
	// given back must not be returned before that one.
	Receive(ctx context.Context, limit int) ([]Delivery, error)
	// Settle acknowledges deliveries or gives them back. It must not
	// acknowledge to the broker anything that was not acknowledged here. After an
	// error the caller repeats the call: it tells the broker again what the broker
	// has not taken, and what comes back instead is delivered once more.
	Settle(ctx context.Context, verdicts []Verdict) error
	// Extend asks the broker for more time to work on deliveries. A source
	// without such a limit does nothing.
	Extend(ctx context.Context, deliveries []Delivery) error
	// Info is constant data about the source. It does no I/O.
	Info() SourceInfo
}

// SourceInfo says what a source is.
type SourceInfo struct {
	Name    string        // "kafka", "nats", "memory"
	AckWait time.Duration // call Extend before this has passed; 0: no limit
}

// Delivery is one received message.
type Delivery struct {
	Message postrider.Message
	// Attempt counts the deliveries of this message to this consumer as far as
	// the broker knows, from 1; 0 when it does not know.
	Attempt int
	// Origin says where the message stood, for logs: "orders/3@1041".
	Origin string
	// Token belongs to the source; hand the Delivery back unchanged.
	Token any
	// Err is set when the record could not be decoded; Message then holds what
	// is known of it. It must be settled like any other.
	Err error
}

// Verdict says what to do with a delivery.
type Verdict struct {
	Delivery Delivery
	Ack      bool          // false: give it back
	Delay    time.Duration // when given back: not before
}

// Func makes a Sink of a function that handles one message at a time: for
// those who need no broker. Messages of one key are given to it one after the
// other, keys in parallel up to 16, and after an error the rest of the key is not tried.
func Func(name string, fn func(ctx context.Context, m postrider.Message) error) Sink {
	return &funcSink{name: name, fn: fn}
}

type funcSink struct {
	name string
	fn   func(ctx context.Context, m postrider.Message) error
}

func (s *funcSink) Info() Info { return Info{Name: s.name} }

func (s *funcSink) Deliver(ctx context.Context, msgs []postrider.Message) []error {
	return PerKey(ctx, msgs, 16, s.fn)
}
