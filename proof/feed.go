package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

// feed is a broker from which consumers are fed, through its own client. It is not
// killed, so it need not flush.
type feed struct {
	url     string
	server  freezer
	publish func(ctx context.Context, page []record) error
	// left is how many records the consumers have not acknowledged; what a consumer
	// has in hand may be left out.
	left  func(ctx context.Context) (int, error)
	close func()
}

// freezer stops a server, whose connections stay, and lets it continue.
type freezer interface {
	Freeze() error
	Thaw() error
}

// record is a message in the plain format, as any program can write it.
type record struct {
	id, key string
	version int
}

func (r record) headers() [][2]string {
	return [][2]string{
		{"postrider-id", r.id},
		{"postrider-type", "proof.event"},
		{"postrider-topic", topic},
		{"postrider-key", r.key},
		{"postrider-version", strconv.Itoa(r.version)},
		{"content-type", "text/plain"},
	}
}

func (r record) payload() []byte { return fmt.Appendf(nil, "%s:%d:%0200d", r.key, r.version, 0) }

const (
	shuffled = 4  // versions of a key that stand in any order
	doubled  = 10 // one of so many comes twice
)

// records are the versions 1 to per of every key: in some disorder, and some twice.
func records(rnd *rand.Rand, keys, per int) []record {
	var out []record
	for first := 1; first <= per; first += shuffled {
		var block []record
		for v := first; v < first+shuffled && v <= per; v++ {
			for k := range keys {
				r := record{id: fmt.Sprintf("01890a5d-ac96-774b-8000-%012x", k<<20+v), key: "k" + strconv.Itoa(k), version: v}
				block = append(block, r)
				if rnd.IntN(doubled) == 0 {
					block = append(block, r)
				}
			}
		}
		rnd.Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
		out = append(out, block...)
	}
	return out
}

func feeds() map[string]func(ctx context.Context) (*feed, error) {
	return map[string]func(ctx context.Context) (*feed, error){"kafka": feedKafka, "nats": feedNATS, "rabbitmq": feedRabbitMQ, "redis": feedRedis}
}

const consumerName = "proof-consumer"

func feedKafka(ctx context.Context) (*feed, error) {
	k, err := testserver.LaunchKafka(ctx, "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	f := &feed{url: k.Addr, server: k, close: func() { client.Close(); _ = k.Close() }}
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		f.close()
		return nil, fmt.Errorf("create topic: %w", err)
	}
	f.publish = func(ctx context.Context, page []record) error {
		rs := make([]*kgo.Record, len(page))
		for i, r := range page {
			rs[i] = &kgo.Record{Key: []byte(r.key), Value: r.payload()}
			for _, h := range r.headers() {
				rs[i].Headers = append(rs[i].Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
			}
		}
		return client.ProduceSync(ctx, rs...).FirstErr()
	}
	f.left = func(ctx context.Context) (left int, err error) {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return 0, err
		}
		committed, err := admin.FetchOffsets(ctx, consumerName)
		if err != nil {
			return 0, err
		}
		ends.Each(func(end kadm.ListedOffset) {
			left += int(end.Offset)
			if at, ok := committed.Lookup(topic, end.Partition); ok {
				left -= int(max(at.At, 0))
			}
		})
		return left, errors.Join(ends.Error(), committed.Error())
	}
	return f, nil
}

func feedNATS(ctx context.Context) (*feed, error) {
	s, err := testserver.LaunchNATS(ctx, "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(s.URL, nats.MaxReconnects(-1))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	f := &feed{url: s.URL, server: s, close: func() { nc.Close(); _ = s.Close() }}
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage})
	}
	if err != nil {
		f.close()
		return nil, err
	}
	f.publish = func(ctx context.Context, page []record) error {
		futures := make([]jetstream.PubAckFuture, len(page))
		for i, r := range page {
			m := nats.NewMsg(topic)
			m.Data = r.payload()
			for _, h := range r.headers() {
				m.Header.Set(h[0], h[1])
			}
			if futures[i], err = js.PublishMsgAsync(m); err != nil {
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
	f.left = func(ctx context.Context) (int, error) {
		c, err := js.Consumer(ctx, topic, consumerName)
		if err != nil {
			return 0, err
		}
		info := c.CachedInfo()
		return int(info.NumPending) + info.NumAckPending, nil
	}
	return f, nil
}

func feedRabbitMQ(ctx context.Context) (*feed, error) {
	s, err := testserver.LaunchRabbitMQ(ctx, "4.0", "", testserver.Throughput())
	if err != nil {
		return nil, err
	}
	r := &rabbit{url: s.URL}
	err = r.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(topic, true, false, false, false,
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": -1, "x-single-active-consumer": true})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("declare the queue: %w", err), s.Close())
	}
	f := &feed{url: s.URL, server: s, close: func() { _ = s.Close() }, left: r.count}
	f.publish = func(ctx context.Context, page []record) error {
		return r.with(func(ch *amqp.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return err
			}
			confirms := make([]*amqp.DeferredConfirmation, len(page))
			for i, r := range page {
				p := amqp.Publishing{Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, Body: r.payload()}
				for _, h := range r.headers() {
					p.Headers[h[0]] = h[1]
				}
				if confirms[i], err = ch.PublishWithDeferredConfirmWithContext(ctx, "", topic, false, false, p); err != nil {
					return err
				}
			}
			for _, c := range confirms {
				if ok, err := c.WaitContext(ctx); err != nil || !ok {
					return errors.Join(err, errors.New("the queue did not confirm"))
				}
			}
			return nil
		})
	}
	return f, nil
}

// fill publishes everything in pages.
func (f *feed) fill(ctx context.Context, all []record) error {
	for from := 0; from < len(all); from += 1000 {
		page, cancel := context.WithTimeout(ctx, time.Minute)
		err := f.publish(page, all[from:min(from+1000, len(all))])
		cancel()
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}
