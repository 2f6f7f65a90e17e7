package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	keys        = 100_000
	partitions  = 8
	rowsPerTx   = 100
	minMessages = 2000 // fewer are sent at once
)

// filler makes payloads half as compressible as random bytes.
const filler = "9e107d9d372bb6826bd81d3542a419d6c0fee9be9a1f5a4d1f0c2a3b4c5d6e7f" +
	"e4d909c290d0fb1ca068ffaddf22cbd08c7dd922ad47494fc02c388e12c00eac" +
	"d41d8cd98f00b204e9800998ecf8427e5d41402abc4b2a76b9719d911017c592" +
	"7d793037a0760186574b0282f2f435e76cd3556deb0da54bca060b4c39479839"

// payloadOf returns the 256 bytes of record i, plain text that begins with its number.
func payloadOf(i int) string { return fmt.Sprintf("%016d", i) + filler[i%16:240+i%16] }

func keyOf(i int) string { return fmt.Sprintf("key-%08d", i%keys) }

// gate is the independent count of a run.
type gate struct {
	OK         bool `json:"ok"`
	Delivered  int  `json:"delivered"`
	Lost       int  `json:"lost"`
	Duplicates int  `json:"duplicates"`
	Disorder   int  `json:"out_of_order"`
	Strange    int  `json:"never_written,omitempty"`
}

// add takes the worst of two runs.
func (g *gate) add(o gate) {
	g.OK = g.OK && o.OK
	g.Delivered += o.Delivered
	g.Lost, g.Duplicates, g.Disorder, g.Strange = max(g.Lost, o.Lost), max(g.Duplicates, o.Duplicates), max(g.Disorder, o.Disorder), max(g.Strange, o.Strange)
}

// count reads a topic back. A key's messages have rising numbers, so a new number below its
// key's highest is out of order.
func (k *kafka) count(ctx context.Context, topic string, n int) (g gate, err error) {
	held, err := k.held(ctx, topic)
	if err != nil {
		return g, err
	}
	seen, highest := make([]bool, n), map[string]int{}
	err = k.follow(ctx, topic, held, func(r *kgo.Record) {
		g.Delivered++
		i, err := number(r.Value)
		last, any := highest[string(r.Key)]
		switch {
		case err != nil || i >= n || string(r.Key) != keyOf(i):
			g.Strange++
		case seen[i]:
			g.Duplicates++
		case any && i < last:
			g.Disorder++
			seen[i] = true
		default:
			highest[string(r.Key)], seen[i] = i, true
		}
	})
	for _, ok := range seen {
		if !ok {
			g.Lost++
		}
	}
	g.OK = g.Lost == 0 && g.Strange == 0
	return g, err
}

// number returns the number at the beginning of a payload.
func number(payload []byte) (int, error) {
	if len(payload) < 16 {
		return 0, fmt.Errorf("payload of %d bytes", len(payload))
	}
	return strconv.Atoi(string(payload[:16]))
}

// kafka is the client of the meter, apart from those that are measured.
type kafka struct {
	addr  string
	pid   int
	admin *kadm.Client
	close func()
}

// topic makes a topic and waits until it can be written.
func (k *kafka) topic(ctx context.Context, name string) error {
	if _, err := k.admin.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		return err
	}
	for {
		_, err := k.held(ctx, name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// held returns the number of records in a topic.
func (k *kafka) held(ctx context.Context, topic string) (n int, err error) {
	ends, err := k.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	found := 0
	ends.Each(func(o kadm.ListedOffset) {
		err = errors.Join(err, o.Err)
		n += int(o.Offset)
		found++
	})
	if err == nil && found != partitions {
		err = fmt.Errorf("topic %s has %d of its %d partitions", topic, found, partitions)
	}
	return n, err
}

// follow calls f for the first n records of a topic.
func (k *kafka) follow(ctx context.Context, topic string, n int, f func(*kgo.Record)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for got := 0; got < n; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got++
			f(r)
		})
	}
	return nil
}

// sample is a record as a relay sends it, for a client that sends the same.
type sample struct {
	Codec   string      `json:"codec"`
	Headers [][2]string `json:"headers"`
}

// sampleOf reads the first record of a topic.
func (k *kafka) sampleOf(ctx context.Context, topic string) (s sample, err error) {
	err = k.follow(ctx, topic, 1, func(r *kgo.Record) {
		s.Codec = codecs[r.Attrs.CompressionType()]
		s.Headers = nil
		for _, h := range r.Headers {
			s.Headers = append(s.Headers, [2]string{h.Key, string(h.Value)})
		}
	})
	return s, err
}

// codecs are the names of Kafka's compression types.
var codecs = map[uint8]string{0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
