package redisbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SinkOptions configures [Open] and [NewSink]. The zero value suits most applications.
type SinkOptions struct {
	// Prefix is put before every topic, "events:" for example.
	Prefix string
	// Route sets the topic that names the stream, the key that chooses the partition,
	// format and further headers of each message. nil: the message's
	// topic and key, plain.
	Route envelope.Router
	// Partitions spreads each topic over this number of streams, TOPIC:0, TOPIC:1, ...,
	// by the hash of the key, or of the id of a message without one; 0 or 1: one stream,
	// named like the topic. Only one source of a
	// group reads a stream, so this limits how many can work at a time. Changing
	// it breaks the order of unread messages.
	Partitions int
	// NoCreate makes a missing stream an outage. Without it
	// the first message creates the stream.
	NoCreate bool
	// NoDedup turns IDMP off, so that a stream keeps duplicates that the
	// server could drop.
	NoDedup bool
	// Trim bounds the streams; zero: they grow until consumers delete entries.
	Trim Trim
	// Replicas waits until this number of replicas have the messages (WAIT); with Synced
	// until they have written them to disk (WAITAOF).
	Replicas int
	// Synced waits until the server has written the messages to its disk (WAITAOF,
	// Redis 7.2 and newer, with appendonly yes).
	Synced bool
	// MaxMessageBytes rejects larger messages; 17 MiB if zero, which is more than
	// an outbox accepts.
	MaxMessageBytes int
	// Connections bounds the connections of all calls together; 8 if zero.
	Connections int
	// Timeout is how long an answer may take; 5 s if zero.
	Timeout time.Duration
	// Durable is the least durability of the server's configuration. The sink does not
	// write to a weaker server, which is an outage.
	Durable Durability
}

// Trim removes the oldest entries of a stream whenever one is added: on Redis
// 8.2 and newer only entries that all groups have acknowledged, on others also
// unread entries, which are then lost.
type Trim struct {
	MaxLen int64         // number of entries to keep; 0: all
	MaxAge time.Duration // age of entries to keep, by this process's clock; 0: any
	// Exact trims to the entry, which is slower; without it Redis removes whole
	// nodes of the stream and keeps a few more entries.
	Exact bool
}

// Sink publishes to Redis Streams. It is safe for concurrent use.
type Sink struct {
	opts  SinkOptions
	links chan *link // free ones
	all   []*link
	codec envelope.Codec
	idmp  memories
}

// NewSink returns a sink on connections of its own, made with the client's options. It
// takes options, not a client, because it writes whole pipelines on connections
// whose state it must know, which go-redis's pool hides. It sets the options that the
// contract depends on (retries, pool, protocol) in a copy. It does no I/O. opts may be nil.
// Close closes the connections.
func NewSink(client *redis.Options, opts *SinkOptions) (*Sink, error) {
	if client == nil {
		return nil, errors.New("redisbroker: sink: client options are nil")
	}
	s := &Sink{codec: wireCodec()}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Trim.MaxLen > 0 && s.opts.Trim.MaxAge > 0 {
		return nil, errors.New("redisbroker: sink: trim by length or by age, not by both")
	}
	s.opts.MaxMessageBytes = cmp.Or(s.opts.MaxMessageBytes, 17<<20)
	s.opts.Connections = cmp.Or(s.opts.Connections, 8)
	s.opts.Timeout = cmp.Or(s.opts.Timeout, 5*time.Second)
	must := demands{durable: s.opts.Durable, synced: s.opts.Synced, keeps: true}
	s.links = make(chan *link, s.opts.Connections)
	for range s.opts.Connections {
		l := newLink(client, s.opts.Timeout, must)
		s.all = append(s.all, l)
		s.links <- l
	}
	return s, nil
}

// Close closes the connections; calls under way fail.
func (s *Sink) Close() {
	for _, l := range s.all {
		l.close()
	}
}

// payloadField is the field of the body.
const payloadField = "payload"

func wireCodec() envelope.Codec {
	return envelope.Codec{Reserved: func(name string) bool { return name == payloadField }}
}

// Info implements broker.Sink.
func (s *Sink) Info() broker.Info {
	return broker.Info{
		Name: "redis", Takes: "stream", MaxMessageBytes: s.opts.MaxMessageBytes, DedupWindow: s.idmp.window(), Codec: s.codec,
		Ping: s.Ping, Probe: s.Probe, Advise: s.Advise, Keeps: s.Keeps, Preview: s.Preview,
	}
}

// Stream returns the stream of a topic and key. For a message without a key, pass its
// id as key.
func (s *Sink) Stream(topic, key string) string {
	return streamOf(s.opts.Prefix, topic, key, s.opts.Partitions)
}

func streamOf(prefix, topic, key string, partitions int) string {
	if partitions <= 1 {
		return prefix + topic
	}
	return partition(prefix+topic, int(hash(key)%uint32(partitions)))
}

// Streams returns the streams of a topic; name is prefix and topic.
func Streams(name string, partitions int) []string {
	if partitions <= 1 {
		return []string{name}
	}
	all := make([]string, partitions)
	for n := range all {
		all[n] = partition(name, n)
	}
	return all
}

// partition returns the name of one stream of a topic.
func partition(name string, n int) string { return fmt.Sprintf("%s:%d", name, n) }

// hash returns the FNV-1a hash with 32 bits.
func hash(key string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum32()
}

// splitAbove is the number of messages above which a call uses several connections.
const splitAbove = 2 * mostMessages

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	a := &answers{errs: make([]error, len(msgs))}
	shares := [][]int{nil}
	if len(msgs) > splitAbove {
		shares = make([][]int, min(4, s.opts.Connections))
	}
	for i := range msgs {
		n := i
		if len(shares) > 1 && msgs[i].Key != "" {
			n = int(hash(msgs[i].Key) % uint32(len(shares)))
		}
		n %= len(shares)
		shares[n] = append(shares[n], i)
	}
	var wg sync.WaitGroup
	for _, share := range shares[1:] {
		wg.Go(func() { s.deliver(ctx, batch, share, a) })
	}
	s.deliver(ctx, batch, shares[0], a)
	wg.Wait()
	if !a.failed.Load() {
		return nil
	}
	return a.errs
}

// deliver sends the messages of a share. A share has all messages of its keys.
func (s *Sink) deliver(ctx context.Context, batch broker.Batch, share []int, a *answers) {
	if len(share) == 0 {
		return
	}
	select {
	case l := <-s.links:
		defer func() { s.links <- l }()
		d := &delivery{s: s, l: l, pipe: batch.Pipe, msgs: batch.Messages, open: share, answers: a, barred: make(map[string]bar), tx: &l.tx}
		d.run(ctx)
		l.tx.reset()
	case <-ctx.Done():
		for _, i := range share {
			a.set(i, broker.NotTried(broker.Unknown(ctx.Err(), "", "")))
		}
	}
}

// frame encodes a message into w and returns its route and stream.
func (s *Sink) frame(w *envelope.Wire, m *postrider.Message) (r envelope.Route, stream string, err error) {
	if r, err = s.opts.Route.Of(m); err != nil {
		return r, "", broker.Unsendable(err, "")
	}
	stream = s.Stream(r.Topic, cmp.Or(r.Key, m.ID)) // without a key any stream, but always the same one
	if err := s.codec.Encode(w, m, &r, r.Carries(m, stream, false)); err != nil {
		return r, stream, broker.Unsendable(err, stream)
	}
	if n, limit := w.Size(), s.opts.MaxMessageBytes; n > limit {
		err := fmt.Errorf("%w: %d bytes with headers, above the limit of %d (max-message-bytes)", errTooLarge, n, limit)
		return r, stream, broker.Rejected(err, codeTooLarge, stream)
	}
	return r, stream, nil
}

// Preview is [broker.Info].Preview.
func (s *Sink) Preview(_ string, m *postrider.Message) (broker.Preview, error) {
	var w envelope.Wire
	r, stream, err := s.frame(&w, m)
	return broker.Preview{
		Route: r, Destination: stream, Headers: w.Headers, Payload: w.Payload,
		Bytes: w.Size(), Limit: s.opts.MaxMessageBytes,
	}, err
}
