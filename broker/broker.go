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
	// message of the batch, its fate is unknown, or ctx ends. nil means that all were
	// acknowledged; otherwise the result has one entry per message, nil for the
	// acknowledged ones. A message whose fate is unknown must have an error.
	//
	// The prefix property: once a message of a key has failed or is unknown, no
	// later message of that key is accepted by the broker from this call, also
	// not after the call has returned. Errors carry their class by the
	// wrappers of this package; an unclassified one counts as Failed, a context
	// error as Unknown. Messages must not be changed or kept after the return.
	Deliver(ctx context.Context, batch Batch) []error
	// Info returns what is known of the sink: limits, and abilities that not every
	// sink has. It does no I/O. A server may tell a limit only later: Info then gets
	// stricter, and Deliver rejects messages that an earlier Info let through. A sink
	// that wraps another one keeps its abilities by passing its Info through.
	Info() Info
}

// Batch is what one call of [Sink].Deliver carries.
type Batch struct {
	// Pipe names the pipe whose messages these are; "" outside of a relay. Two pipes
	// may publish the same message to one destination: see [DedupID].
	Pipe     string
	Messages []postrider.Message
}

// Info says what a sink is and can do. Zero limits mean none known. A nil ability
// means that the sink has not got it: a caller then goes without, or says so. The
// functions are safe for concurrent use.
type Info struct {
	Name            string        // "kafka", "nats", "memory"
	Takes           string        // kind of a destination, for errors: "topic", "queue", "stream"; "": "destination"
	MaxBatch        int           // messages per call
	MaxBatchBytes   int           // Message.Size summed per call
	MaxMessageBytes int           // per message; Deliver rejects larger ones, by the limit of that moment
	DedupWindow     time.Duration // for how long the broker itself drops a repeated ID
	Fencing         bool          // a zombie's messages are refused by the broker
	// Held is the number of messages in a relay's memory that keeps the sink busy, where a
	// second of its throughput is less than the relay's default; 0: the default.
	Held int

	// What a message must keep to on this broker besides, so that it can be
	// checked before it is written.
	MaxTopicBytes  int                     // of a destination, prefix and all
	TopicProblem   func(name string) error // what is wrong with a destination's name; nil: nothing
	MaxKeyBytes    int                     // of the broker's own key
	MaxHeaders     int                     // headers per message
	MaxHeaderBytes int                     // names and values of all headers
	Codec          envelope.Codec          // how messages look there

	// Ping asks the broker for a sign of life with at most a few small requests, and
	// connects first where there is no connection. It sends no message and changes
	// nothing. nil: the broker answers, and accepts the credentials. The error is
	// [ErrRefused] where a person must act. A sink with several brokers or endpoints
	// answers nil when one of them answers. A sink without Ping is known by its
	// answers to messages alone.
	Ping func(ctx context.Context) error
	// Probe reaches the broker and looks whether the topics are there, without
	// making or changing anything. It returns one error per topic, nil where the
	// topic is there, or an error when the broker did not answer before ctx ended,
	// or rejected the credentials ([ErrRefused]).
	Probe func(ctx context.Context, topics []string) (missing []error, err error)
	// Advise reads the settings of the topics and returns those that weaken what a
	// relay promises, without changing anything. Missing topics, and settings that
	// may not be read, have no advice.
	Advise func(ctx context.Context, topics []string) ([]Advice, error)
	// Keeps reads for how long the broker keeps a topic's messages: for so long a
	// message can return after its effect, to a consumer that is made anew or set
	// back. It changes nothing.
	Keeps func(ctx context.Context, topic string) (Keeping, error)
	// Preview returns what Deliver would send of a pipe's message. Its error is the
	// one with which Deliver would answer m before anything is sent; the Preview then
	// holds what is known. It does no I/O: what only the broker knows is not looked at.
	Preview func(pipe string, m *postrider.Message) (Preview, error)
	// Stops leaves single destinations alone while the others continue; nil: the sink
	// has one destination.
	Stops *Stops
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
	// Foreign is set when another writer made the record, by [envelope.Codec.IsForeign]: its
	// payload may be in a format of theirs, such as behind the id of a schema.
	Foreign bool
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

func (s *funcSink) Deliver(ctx context.Context, batch Batch) []error {
	return PerKey(ctx, batch.Messages, 16, s.fn)
}
