package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// feed is the consumers' broker. It is never killed, so it need not flush.
type feed struct {
	*brokers.Broker
	url string // for the consumers
}

// message returns a version of a key in the plain format, as any program can write it.
func message(key, version int) brokers.Message {
	k, v := "k"+strconv.Itoa(key), strconv.Itoa(version)
	return brokers.Message{
		Key: k, Payload: fmt.Appendf(nil, "%s:%s:%0200d", k, v, 0),
		Headers: [][2]string{
			{"postrider-id", fmt.Sprintf("01890a5d-ac96-774b-8000-%012x", key<<20+version)},
			{"postrider-type", "proof.event"},
			{"postrider-topic", topic},
			{"postrider-key", k},
			{"postrider-version", v},
			{"content-type", "text/plain"},
		},
	}
}

const (
	shuffled = 4  // consecutive versions of a key in random order
	doubled  = 10 // every tenth record is published twice
)

// records returns the versions 1 to per of every key, partly shuffled, some of them twice.
func records(rnd *rand.Rand, keys, per int) []brokers.Message {
	var out []brokers.Message
	for first := 1; first <= per; first += shuffled {
		var block []brokers.Message
		for v := first; v < first+shuffled && v <= per; v++ {
			for k := range keys {
				m := message(k, v)
				block = append(block, m)
				if rnd.IntN(doubled) == 0 {
					block = append(block, m)
				}
			}
		}
		rnd.Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
		out = append(out, block...)
	}
	return out
}

const consumerName = "proof-consumer"

func openFeed(ctx context.Context, name string) (*feed, error) {
	b, err := private.Launch(ctx, name, testserver.Throughput())
	if err != nil {
		return nil, err
	}
	f := &feed{b, b.URL}
	switch name {
	case "kafka":
		f.url = strings.TrimPrefix(b.URL, "kafka://")
	case "redis":
		f.url = fmt.Sprintf("%s?partitions=%d", b.URL, partitions)
	}
	if err := b.Make(ctx, brokers.Topic{Name: topic, Partitions: partitions, Streams: partitions, Single: true, Ordered: true}); err != nil {
		b.Close()
		return nil, err
	}
	return f, nil
}

// left returns the number of records that the consumers have not acknowledged.
func (f *feed) left(ctx context.Context) (int, error) { return f.Lag(ctx, topic, consumerName) }

// unread is left after the consumers have ended. If the broker cannot count, it reads the
// remaining records until none has come for longer than a record can be hidden.
func (f *feed) unread(ctx context.Context) (int, error) {
	if f.Lag != nil {
		return f.left(ctx)
	}
	for last, since := 0, time.Now(); ; {
		n, err := f.Count(ctx, topic)
		switch {
		case err != nil:
			return 0, err
		case n != last:
			last, since = n, time.Now()
		case time.Since(since) > 2*f.Lease:
			return n, nil
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// fill publishes all records in pages.
func (f *feed) fill(ctx context.Context, all []brokers.Message) error {
	for from := 0; from < len(all); from += 1000 {
		page, cancel := context.WithTimeout(ctx, time.Minute)
		err := f.Publish(page, topic, all[from:min(from+1000, len(all))])
		cancel()
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}
