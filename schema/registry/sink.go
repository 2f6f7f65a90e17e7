package registry

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/seal"
)

// Router adds the frame of the schema to routes of the format Confluent. It does no I/O:
// for an unknown schema it returns an error, with which [Client.Sink] asks
// the registry.
func (c *Client) Router(next envelope.Router) envelope.Router {
	near := new(recent)
	if next == nil {
		next = next.Of
	}
	return func(m *postrider.Message) (r envelope.Route, err error) {
		if r, err = next(m); err != nil || r.Format != envelope.Confluent {
			return r, err
		}
		misfit := func(field, code, reason string) error {
			return &envelope.RouteError{Code: code, Rule: r.Rule, Field: field, Reason: reason}
		}
		if len(m.Headers) > 0 {
			switch {
			case m.Headers[seal.HeaderAlgorithm] != "":
				return r, misfit("payload", envelope.CodeFormat, "is sealed, and readers of a schema registry cannot open it: send it in another format")
			case m.Headers[postrider.ErasedHeader] != "" && len(m.Payload) == 0:
				return r, misfit("payload", envelope.CodeFormat, "was erased, and readers of a schema registry cannot read an empty one: discard it")
			case m.Headers[envelope.DataRef] != "":
				return r, nil // Encode refuses it
			}
		}
		if held := c.held.Load(); held != nil {
			if s, is := (*held)[r.Topic]; is {
				return r, &missing{s, r.Topic, true}
			}
		}
		if r.Schema.Framing != envelope.Framed {
			e := near.find(c, r.Schema.Framing, r.Schema.Subject, r.Schema.Version)
			if e == nil {
				return r, &missing{r.Schema, r.Topic, false}
			}
			if r.Frame = e.of(r.Schema.Record); r.Frame == nil {
				return r, misfit("payload", CodeRecord, "has no schema: "+e.lacks(r.Schema.Record))
			}
			return r, nil
		}
		id, rest, ok := FrameID(m.Payload)
		if !ok {
			return r, misfit("payload", CodeFrame, "does not begin with a schema id, and framing is framed: correct the writer, or set framing to id")
		}
		e := near.find(c, envelope.Framed, "", int32(id))
		if e == nil {
			return r, &missing{envelope.Schema{Framing: envelope.Framed, Version: int32(id)}, r.Topic, false}
		}
		r.Frame = e.frame
		if e.protobuf {
			_, body, err := MessageIndex(rest)
			if err != nil {
				return r, misfit("payload", CodeFrame, "has no index of its Protobuf message behind the schema id: correct the writer")
			}
			r.Frame = &envelope.Frame{Inside: len(m.Payload) - len(body)}
		}
		return r, nil
	}
}

// recent has the schemas that a router met last, so that most messages cost neither a lock nor a
// look into a map.
type recent [16]atomic.Pointer[entry]

func (n *recent) find(c *Client, framing envelope.Framing, subject string, version int32) *entry {
	slot := uint32(version) + uint32(len(subject))
	if subject != "" {
		slot += uint32(subject[len(subject)-1]) // where the record names it
	}
	at := &n[slot%uint32(len(n))]
	if e := at.Load(); e != nil && e.schema.Version == version && e.schema.Subject == subject && e.schema.Framing == framing {
		return e
	}
	e := c.lookup(envelope.Schema{Framing: framing, Subject: subject, Version: version})
	if e != nil {
		at.Store(e)
	}
	return e
}

// missing is the error about a schema that must be asked for.
type missing struct {
	schema envelope.Schema
	topic  string
	held   bool // another message of the topic waits for the schema
}

func (e *missing) Error() string {
	return "id of the schema " + e.schema.Subject + " is unknown: deliver through registry.Client.Sink"
}

// ErrorCode is [CodeUnknown].
func (e *missing) ErrorCode() string { return CodeUnknown }

// Sink returns a sink that asks the registry for schemas that the router of to, which is
// [Client.Router], does not know. While all are known it adds nothing to a call.
func (c *Client) Sink(to broker.Sink) broker.Sink { return &sink{c, to} }

type sink struct {
	c  *Client
	to broker.Sink
}

// Info is that of the sink behind it. Preview asks the registry where it must.
func (s *sink) Info() broker.Info {
	info := s.to.Info()
	if preview := info.Preview; preview != nil {
		info.Preview = func(pipe string, m *postrider.Message) (broker.Preview, error) {
			p, err := preview(pipe, m)
			for range 2 { // it may wait for another schema first
				var miss *missing
				if !errors.As(err, &miss) {
					break
				}
				if err := s.c.settle(context.Background(), miss); err != nil { //nolint:forbidigo // bounded by the client's timeout
					return p, classify(err, miss.topic)
				}
				p, err = preview(pipe, m)
			}
			return p, err
		}
	}
	return info
}

// Deliver implements broker.Sink.
func (s *sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	errs := s.to.Deliver(ctx, batch)
	if errs == nil {
		return nil
	}
	// A round sends one message more at least, or ends the outage that a message waited for.
	for range 2 * len(batch.Messages) {
		again := s.lookup(ctx, batch.Messages, errs)
		if len(again) == 0 {
			break
		}
		next := broker.Batch{Pipe: batch.Pipe, Messages: make([]postrider.Message, len(again))}
		for n, i := range again {
			next.Messages[n] = batch.Messages[i]
		}
		answers := s.to.Deliver(ctx, next)
		for n, i := range again {
			errs[i] = nil
			if answers != nil {
				errs[i] = answers[n]
			}
		}
	}
	failed := false
	for i, err := range errs {
		var miss *missing
		if errors.As(err, &miss) { // another call has begun an outage of its topic since
			errs[i] = broker.Throttled(err, CodeUnreachable, miss.topic, retryAfter)
		}
		failed = failed || err != nil
	}
	if !failed {
		return nil
	}
	return errs
}

// lookup asks for the missing schemas. It returns the messages to deliver once more: those
// whose schema was found, and those behind them in their keys. None of them was
// accepted, by the prefix property.
func (s *sink) lookup(ctx context.Context, msgs []postrider.Message, errs []error) (again []int) {
	var down error                 // the registry does not answer: one question per call is enough
	causes := map[string]error{}   // by key: why its first message failed
	found := make(map[string]bool) // by key: it is delivered once more
	for i := range msgs {
		key, err := msgs[i].Key, errs[i]
		if key != "" && found[key] {
			again = append(again, i)
			continue
		}
		if err == nil {
			continue
		}
		var miss *missing
		is := errors.As(err, &miss)
		if cause := causes[key]; key != "" && cause != nil {
			if is || errors.Is(err, broker.ErrNotTried) {
				errs[i] = broker.NotTried(cause)
			}
			continue
		}
		if is {
			if err = down; err == nil {
				err = s.c.settle(ctx, miss)
			}
			if err == nil {
				again, found[key] = append(again, i), key != ""
				continue
			}
			if wrong := (*Error)(nil); errors.As(err, &wrong) && wrong.Down() {
				down = err
			}
			errs[i] = classify(err, miss.topic)
		}
		causes[key] = errs[i]
	}
	return again
}

// settle asks for a missing schema. While the registry does not answer, all messages of the
// topic wait for it: an outage in which some of them were sent would begin and end with
// each of those. The first answer, whatever it is, ends it.
func (c *Client) settle(ctx context.Context, miss *missing) error {
	err := c.Resolve(ctx, miss.schema)
	wrong := (*Error)(nil)
	down := err != nil && (!errors.As(err, &wrong) || wrong.Down())
	c.mu.Lock()
	next := map[string]envelope.Schema{}
	if held := c.held.Load(); held != nil {
		next = maps.Clone(*held)
	}
	if delete(next, miss.topic); down {
		next[miss.topic] = miss.schema
	}
	if len(next) == 0 {
		c.held.Store(nil)
	} else {
		c.held.Store(&next)
	}
	c.mu.Unlock()
	if miss.held && !down {
		return nil // the message has a schema of its own
	}
	return err
}
