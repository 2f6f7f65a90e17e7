package promises

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store/pgstore"
)

// claimSink returns a sink of a real Kafka with its default limit of 1 MiB, which large
// payloads exceed.
func claimSink(t *testing.T, addr, topic string, f envelope.Format) (broker.Sink, envelope.Router) {
	t.Helper()
	table, err := route.New([]route.Rule{{Topic: topic, Format: f}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Route: table.Route})
	if err != nil {
		t.Fatal(err)
	}
	return sink, table.Route
}

// payloadOf returns a deterministic payload that does not compress to nearly no bytes.
func payloadOf(n, size int) []byte {
	p := bytes.Repeat([]byte(fmt.Sprintf("payload %d ", n)), size/10+1)
	return p[:size]
}

// TestClaimCheck leaves payloads above the broker's limit in the outbox; every handler
// gets the complete message, sealed or not, in every format.
//
// Promises: L
func TestClaimCheck(t *testing.T) {
	kafka := kafkaServer(t, testserver.StartKafka(t))
	addr := strings.TrimPrefix(kafka.URL, "kafka://")
	key, err := seal.NewKey("k1", []byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := seal.NewRing(key)
	if err != nil {
		t.Fatal(err)
	}
	box := seal.New(ring, nil)
	for _, f := range []envelope.Format{envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured} {
		t.Run(f.String(), func(t *testing.T) {
			url := postgresDB(t, "18")
			pool := pgxPool(t, url)
			topic := "claim-" + f.String()
			kafka.make(t, topic, 0)
			sink, router := claimSink(t, addr, topic, f)
			ob := outbox.New(dialect.Postgres, &outbox.Options{Sealer: box})
			sizes := []int{0, 100, 3 << 20, 1 << 19, 5 << 20, 200 << 10}
			enqueueSizes(t, pool, ob, sizes)
			ctx, stop := context.WithCancel(t.Context())
			carried := make(chan error, 1)
			go func() {
				carried <- relay.New(pgstore.New(pool, nil), sink, &relay.Options{
					Route: router, Claim: &claim.Policy{Schema: "postrider", Above: 256 << 10},
				}).Run(ctx)
			}()
			got := consume(t, pool, addr, topic, len(sizes), claim.NewOpener(pgstore.NewBodies(pool), box))
			stop()
			if err := <-carried; err != nil {
				t.Error(err)
			}
			for n, size := range sizes {
				if m := got[fmt.Sprint("k", n)]; !bytes.Equal(m.Payload, payloadOf(n, size)) || m.Headers[envelope.DataRef] != "" || m.Headers["n"] != fmt.Sprint(n) {
					t.Errorf("message %d of %d bytes was received with %d bytes, headers %v", n, size, len(m.Payload), m.Headers)
				}
			}
		})
	}
}

func enqueueSizes(t *testing.T, pool *pgxpool.Pool, ob *outbox.Outbox, sizes []int) {
	t.Helper()
	err := throughPgx(pool)(t.Context(), func(tx outbox.Tx) error {
		for n, size := range sizes {
			m := postrider.Message{
				Topic: "orders", Key: fmt.Sprint("k", n), Type: "made", ContentType: "text/plain",
				Payload: payloadOf(n, size), Headers: map[string]string{"n": fmt.Sprint(n)},
			}
			if err := ob.Enqueue(t.Context(), tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// consume runs a consumer until it has handled n keys.
func consume(t *testing.T, pool *pgxpool.Pool, addr, topic string, n int, opener consumer.Opener) map[string]postrider.Message {
	t.Helper()
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr)}, &kafkabroker.SourceOptions{Group: topic, Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	opts := quick
	opts.Opener = opener
	c := consumer.New(src, consumer.Pgx(pool), &opts)
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	got := map[string]postrider.Message{}
	c.HandleMessage("made", func(_ context.Context, _ pgx.Tx, m postrider.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if got[m.Key] = m; len(got) == n {
			stop()
		}
		return nil
	})
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestFetchOfMissingPayloads checks the errors of Fetch for missing, emptied and changed
// payloads.
//
// Promises: C
func TestFetchOfMissingPayloads(t *testing.T) {
	pool := pgxPool(t, postgresDB(t, "18"))
	enqueueSizes(t, pool, outbox.New(dialect.Postgres, nil), []int{100, 100, 100, 100})
	opener := claim.NewOpener(pgstore.NewBodies(pool), nil)
	policy := claim.Policy{Schema: "postrider", Above: 10}
	message := func(key string) postrider.Message {
		var m postrider.Message
		var lane int
		var seq int64
		err := pool.QueryRow(t.Context(), `SELECT lane, seq, id::text, payload, created_at FROM postrider.outbox WHERE key = $1`, key).Scan(&lane, &seq, &m.ID, &m.Payload, &m.Time)
		if err != nil {
			t.Fatal(err)
		}
		m.Headers = map[string]string{envelope.DataRef: policy.Ref(lane, seq, &m)}
		m.Payload = nil
		return m
	}
	change := func(sql string) {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	here, gone, emptied, changed := message("k0"), message("k1"), message("k2"), message("k3")
	change(`DELETE FROM postrider.outbox WHERE key = 'k1'`)
	change(`UPDATE postrider.outbox SET payload = '', emptied_at = clock_timestamp() WHERE key = 'k2'`)
	change(`UPDATE postrider.outbox SET payload = 'forged' WHERE key = 'k3'`)
	if m, err := opener.Open(t.Context(), here); err != nil || !bytes.Equal(m.Payload, payloadOf(0, 100)) {
		t.Errorf("fetch of an existing payload: %v, %d bytes", err, len(m.Payload))
	}
	foreign := here
	foreign.ID = gone.ID
	for name, tc := range map[string]struct {
		m    postrider.Message
		want error
	}{"gone": {gone, claim.ErrGone}, "erased": {emptied, seal.ErrErased}, "changed": {changed, seal.ErrTampered}, "another's": {foreign, seal.ErrTampered}} {
		if _, err := opener.Open(t.Context(), tc.m); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
