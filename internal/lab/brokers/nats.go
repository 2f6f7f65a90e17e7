package brokers

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS describes a NATS server with JetStream. A topic is a stream with one subject of
// the same name. Close closes the connection.
func NATS(nc *nats.Conn) (*Broker, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	j := jetStream{js}
	return &Broker{
		Name: "nats", Make: j.make, Remove: j.remove, Publish: j.publish,
		Count: func(ctx context.Context, topic string) (int, error) {
			_, state, err := j.state(ctx, topic)
			return int(state.Msgs), err
		},
		Read: func(ctx context.Context, topic string, each func(Record)) error {
			s, state, err := j.state(ctx, topic)
			if err != nil || state.Msgs == 0 {
				return err
			}
			return j.iterate(ctx, s, jetstream.NextContext(ctx), func(at uint64, r Record) bool { each(r); return at < state.LastSeq })
		},
		Follow: j.follow,
		Lag: func(ctx context.Context, topic, group string) (int, error) {
			c, err := js.Consumer(ctx, topic, group)
			if err != nil {
				return 0, err
			}
			info := c.CachedInfo() // fetched by the call above
			return int(info.NumPending) + info.NumAckPending, nil
		},
		Full: func(ctx context.Context, topic string) (func(context.Context) error, error) {
			return j.change(ctx, topic, func(c *jetstream.StreamConfig, held int64) { c.MaxMsgs, c.Discard = held+50, jetstream.DiscardNew })
		},
		Refuse: func(ctx context.Context, topic string) (func(context.Context) error, error) {
			return j.change(ctx, topic, func(c *jetstream.StreamConfig, _ int64) { c.MaxMsgSize = 1 })
		},
		Close: nc.Close,
	}, nil
}

type jetStream struct{ jetstream.JetStream }

func (j jetStream) make(ctx context.Context, t Topic) error {
	_, err := j.CreateStream(ctx, jetstream.StreamConfig{
		Name: t.Name, Subjects: []string{t.Name}, Storage: jetstream.FileStorage, MaxMsgSize: int32(t.MaxBytes),
	})
	if err != nil {
		return fmt.Errorf("make the stream %s: %w", t.Name, err)
	}
	return nil
}

func (j jetStream) remove(ctx context.Context, topic string) error {
	if err := j.DeleteStream(ctx, topic); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove the stream %s: %w", topic, err)
	}
	return nil
}

// state returns the stream and its state.
func (j jetStream) state(ctx context.Context, topic string) (jetstream.Stream, jetstream.StreamState, error) {
	s, err := j.Stream(ctx, topic)
	if err != nil {
		return nil, jetstream.StreamState{}, err
	}
	return s, s.CachedInfo().State, nil
}

// iterate passes the stream's messages, from the first, to more until more returns false.
func (j jetStream) iterate(ctx context.Context, s jetstream.Stream, opt jetstream.NextOpt, more func(at uint64, r Record) bool) error {
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	it, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer it.Stop()
	for {
		m, err := it.Next(opt)
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if !more(meta.Sequence.Stream, Record{Payload: m.Data(), Time: meta.Timestamp}) {
			return nil
		}
	}
}

func (j jetStream) follow(ctx context.Context, topic string, n int, each func(Record)) error {
	s, err := j.Stream(ctx, topic)
	if err != nil || n <= 0 {
		return err
	}
	got := 0
	err = j.iterate(ctx, s, jetstream.NextMaxWait(silence), func(_ uint64, r Record) bool { each(r); got++; return got < n })
	if errors.Is(err, nats.ErrTimeout) {
		return silent(got, n)
	}
	return err
}

func (j jetStream) publish(ctx context.Context, topic string, page []Message) error {
	futures := make([]jetstream.PubAckFuture, len(page))
	for i, m := range page {
		msg := nats.NewMsg(topic)
		msg.Data = m.Payload
		for _, h := range m.Headers {
			msg.Header.Set(h[0], h[1])
		}
		var err error
		if futures[i], err = j.PublishMsgAsync(msg); err != nil {
			return err
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// change changes a stream's configuration until undo is called.
func (j jetStream) change(ctx context.Context, topic string, fn func(c *jetstream.StreamConfig, held int64)) (undo func(context.Context) error, err error) {
	s, state, err := j.state(ctx, topic)
	if err != nil {
		return nil, err
	}
	was := s.CachedInfo().Config
	changed := was
	fn(&changed, int64(state.Msgs))
	_, err = j.UpdateStream(ctx, changed)
	return func(ctx context.Context) error { _, err := j.UpdateStream(ctx, was); return err }, err
}
