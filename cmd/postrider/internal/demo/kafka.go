package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

type kafkaBroker struct {
	opts  []kgo.Opt
	topic string
	cl    *kgo.Client
	admin *kadm.Client
}

func openKafka(ctx context.Context, raw, topic string) (*kafkaBroker, error) {
	k, err := kafkabroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	cl, err := kgo.NewClient(k.Client...)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*open.Timeout) // a broker that has just started takes long for its first topic
	defer cancel()
	b := &kafkaBroker{opts: k.Client, topic: k.Sink.Prefix + topic, cl: cl, admin: kadm.NewClient(cl)}
	resp, err := b.admin.CreateTopic(ctx, 6, -1, nil, b.topic)
	if err = errors.Join(err, resp.Err); err != nil {
		cl.Close()
		return nil, exit.Withf(exit.Unreachable, "the broker %s did not make the topic %s: %w; check --broker and that the server runs", redact.Place(raw), b.topic, err)
	}
	return b, nil
}

func (b *kafkaBroker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
	defer cancel()
	_, _ = b.admin.DeleteTopics(ctx, b.topic)
	b.cl.Close()
}

func (b *kafkaBroker) published(ctx context.Context) (int, error) {
	offsets, err := b.admin.ListEndOffsets(ctx, b.topic)
	if err = errors.Join(err, offsets.Error()); err != nil {
		return 0, err
	}
	n := 0
	offsets.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n, nil
}

func (b *kafkaBroker) copies(ctx context.Context) ([]copyAt, error) {
	want, err := b.published(ctx)
	if err != nil || want == 0 {
		return nil, err
	}
	reader, err := kgo.NewClient(append(b.opts, kgo.ConsumeTopics(b.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(ctx, 6*open.Timeout)
	defer cancel()
	all := make([]copyAt, 0, want)
	for len(all) < want {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("the topic holds %d messages and gave %d: %w", want, len(all), err)
		}
		fetches.EachRecord(func(r *kgo.Record) { all = append(all, decodeCopy(r.Value, r.Timestamp)) })
	}
	return all, nil
}
