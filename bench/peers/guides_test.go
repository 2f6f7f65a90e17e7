package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

// move is a guide of docs/guides that is followed under traffic, on servers of its own.
type move struct {
	*testing.T
	text, dir string
	env       []string
	pool      *pgxpool.Pool
	kafka     *kgo.Client
	addr      string
	topic     string
	log       string // of the relay
}

func openMove(t *testing.T, page string) *move {
	t.Helper()
	if _, err := testserver.KafkaLibs(); err != nil {
		testserver.GiveUp(t, err)
	}
	root, _, err := folders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := goRun(t.Context(), root, []string{"CGO_ENABLED=0", "GOWORK="}, "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "postrider"), "./cmd/postrider"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", page))
	if err != nil {
		t.Fatal(err)
	}
	m := &move{T: t, text: string(text), dir: dir, topic: "moved-" + page, addr: testserver.SharedKafka(t).Addr}
	m.log = filepath.Join(m.dir, "relay.log")
	store := testserver.SharedPostgres(t, "18").Database(t)
	if m.kafka, err = kgo.NewClient(kgo.SeedBrokers(m.addr), kgo.ConsumeTopics(m.topic)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kafka.Close)
	if _, err := kadm.NewClient(m.kafka).CreateTopic(t.Context(), 1, 1, nil, m.topic); err != nil {
		t.Fatal(err)
	}
	m.env = append(os.Environ(), "POSTRIDER_STORE="+store, "POSTRIDER_BROKER=kafka://"+m.addr, "POSTRIDER_LISTEN=127.0.0.1:0", "PATH="+dir+":"+os.Getenv("PATH"))
	cfg, err := pgxpool.ParseConfig(store)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 20
	if m.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.pool.Close)
	m.exec(`CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL)`)
	return m
}

func (m *move) exec(text string) {
	m.Helper()
	if _, err := m.pool.Exec(m.Context(), text); err != nil {
		m.Fatalf("%s: %v", text, err)
	}
}

func (m *move) number(text string) (n int64) {
	m.Helper()
	if err := m.pool.QueryRow(m.Context(), text).Scan(&n); err != nil {
		m.Fatalf("%s: %v", text, err)
	}
	return n
}

var fenced = regexp.MustCompile("(?s)```(\\w+)\n(.*?)```")

// block returns the first block of a language in a section.
func (m *move) block(section, language string) string {
	m.Helper()
	_, after, _ := strings.Cut(m.text, "\n## "+section)
	part, _, _ := strings.Cut(after, "\n## ")
	for _, found := range fenced.FindAllStringSubmatch(part, -1) {
		if found[1] == language {
			return found[2]
		}
	}
	m.Fatalf("section %q has no block of %s", section, language)
	return ""
}

// sql runs a section's block and returns the last number. A lock that is not free is asked for again.
func (m *move) sql(section string) (n int64) {
	m.Helper()
	text := m.block(section, "sql")
	for {
		conn, err := m.pool.Acquire(m.Context())
		if err != nil {
			m.Fatal(err)
		}
		results, err := conn.Conn().PgConn().Exec(m.Context(), text).ReadAll()
		conn.Release()
		if busy := (*pgconn.PgError)(nil); errors.As(err, &busy) && busy.Code == "55P03" {
			continue
		}
		if err != nil {
			m.Fatalf("%s: %v", text, err)
		}
		if last := results[len(results)-1]; len(last.Rows) == 1 {
			fmt.Sscan(string(last.Rows[0][0]), &n)
		}
		return n
	}
}

// sh runs the commands of a section. A relay runs until the test ends.
func (m *move) sh(section string) {
	m.Helper()
	for line := range strings.Lines(m.block(section, "sh")) {
		m.run(strings.TrimSpace(line))
	}
}

func (m *move) run(line string) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 10*time.Minute)
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+line)
	cmd.Dir, cmd.Env = m.dir, m.env
	if line != "postrider relay" {
		defer cancel()
		if out, err := cmd.CombinedOutput(); err != nil {
			m.Fatalf("%s: %v\n%s", line, err, out)
		}
		return
	}
	log, err := os.Create(m.log)
	if err != nil {
		m.Fatal(err)
	}
	cmd.Stderr, cmd.Cancel = log, func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // ended by the signal
		log.Close()
		if m.Failed() {
			m.Logf("the relay:\n%s", m.said())
		}
	})
}

func (m *move) said() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		m.Fatal(err)
	}
	return string(text)
}

func (m *move) until(what string, done func() bool) {
	m.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for pace := time.Tick(20 * time.Millisecond); !done(); <-pace {
		if m.Failed() || time.Now().After(deadline) {
			m.Fatalf("waited in vain until %s", what)
		}
	}
}

const committed = `SELECT coalesce(sum(n), 0)::bigint FROM counter`

// grown waits until so many more events are committed.
func (m *move) grown(by int64) {
	m.Helper()
	want := m.number(committed) + by
	m.until("more events are committed", func() bool { return m.number(committed) >= want })
}

// event is the next of its key.
type event struct {
	Key string `json:"k"`
	N   int64  `json:"n"`
}

// traffic commits events from four writers until it is stopped. Every tenth is rolled back.
func (m *move) traffic(insert func(tx pgx.Tx, key, payload string) error) (stop func()) {
	ctx, cancel := context.WithCancel(m.Context())
	rolled := errors.New("rolled back")
	one := func() error {
		return pgx.BeginFunc(m.Context(), m.pool, func(tx pgx.Tx) error {
			e := event{Key: fmt.Sprint("k", rand.IntN(12))}
			if err := tx.QueryRow(m.Context(), `INSERT INTO counter VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = counter.n + 1 RETURNING n`, e.Key).Scan(&e.N); err != nil {
				return err
			}
			payload, err := json.Marshal(e)
			if err == nil {
				err = insert(tx, e.Key, string(payload))
			}
			if err == nil && rand.IntN(10) == 0 {
				err = rolled
			}
			return err
		})
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for pace := time.Tick(4 * time.Millisecond); ctx.Err() == nil; <-pace {
				if err := one(); err != nil && !errors.Is(err, rolled) {
					m.Errorf("a writer ended: %v", err)
					return
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// follow goes through the guide twice, with a step back after each.
func (m *move) follow(drained func() bool, start, stop func()) {
	m.Helper()
	m.grown(150)
	m.sh("1.")
	for turn := range 2 {
		m.until("the relay has paused", func() bool { return strings.Count(m.said(), "pipe paused") > turn })
		m.sql("2.")
		m.grown(50) // while the old way still drains
		m.until("the old way has drained", drained)
		stop()
		m.sh("3.")
		m.grown(300)
		m.sql("Step back")
		m.grown(50)
		m.until("the relay has drained", func() bool { return m.number(`SELECT count(*) FROM postrider.messages WHERE state <> 'Sent'`) == 0 })
		start()
		m.grown(100)
		m.run("postrider pipe pause main")
	}
}

// arrived checks that each committed event is at the broker once, and each of the relay's behind all
// earlier ones of its key, whoever sent these.
func (m *move) arrived(check func(r *kgo.Record)) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	total := m.number(committed)
	type numbers struct {
		seen  map[int64]bool
		count int64
	}
	keys := map[string]*numbers{}
	relayed, inverted := 0, 0
	for n := int64(0); n < total; {
		fetched := m.kafka.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			m.Fatalf("%d of %d events arrived: %v", n, total, err)
		}
		fetched.EachRecord(func(r *kgo.Record) {
			n++
			var e event
			if err := json.Unmarshal(r.Value, &e); err != nil {
				m.Fatalf("%s: %v", r.Value, err)
			}
			k := keys[e.Key]
			if k == nil {
				k = &numbers{seen: map[int64]bool{}}
				keys[e.Key] = k
			}
			k.count++
			ours := slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == "postrider-id" })
			switch {
			case k.seen[e.N] || string(r.Key) != e.Key:
				m.Errorf("key %q: number %d of %s arrived before", r.Key, e.N, e.Key)
			case ours && e.N != k.count:
				m.Errorf("key %q: the relay's number %d is the %d. to arrive", r.Key, e.N, k.count)
			case e.N != k.count:
				inverted++
			}
			k.seen[e.N] = true
			if ours {
				relayed++
			}
			check(r)
		})
	}
	ends, err := kadm.NewClient(m.kafka).ListEndOffsets(ctx, m.topic)
	if err != nil {
		m.Fatal(err)
	}
	if end, _ := ends.Lookup(m.topic, 0); end.Offset != total {
		m.Errorf("%d events arrived, %d are committed", end.Offset, total)
	}
	if relayed < 400 || total-int64(relayed) < 200 {
		m.Errorf("%d of %d events by the relay", relayed, total)
	}
	m.Logf("%d events committed, all arrived once, %d by the relay, these in order; %d of the others out of order; two switches and two steps back", total, relayed, inverted)
}

// TestGuideWatermill follows the guide with a real forwarder. Its consumers find each message's
// UUID and metadata where they were.
//
// Promises: L, O
func TestGuideWatermill(t *testing.T) {
	m := openMove(t, "watermill.md")
	subscriber := func() *wsql.Subscriber {
		s, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(m.pool), wsql.SubscriberConfig{
			ConsumerGroup: "forwarder", PollInterval: 5 * time.Millisecond, InitializeSchema: true,
			SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := subscriber().SubscribeInitialize("events"); err != nil {
		t.Fatal(err)
	}
	marshaler := wkafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) { return msg.Metadata.Get("key"), nil })
	stop := func() {}
	start := func() {
		out, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: []string{m.addr}, Marshaler: marshaler}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := forwarder.NewForwarder(subscriber(), out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "events"})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- f.Run(context.WithoutCancel(t.Context())) }()
		stop = func() {
			if err := errors.Join(f.Close(), <-ended, out.Close()); err != nil {
				t.Errorf("the forwarder: %v", err)
			}
		}
	}
	start()
	stopTraffic := m.traffic(func(tx pgx.Tx, key, payload string) error {
		table, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), message.Payload(payload))
		msg.Metadata.Set("key", key)
		return forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: "events"}).Publish(m.topic, msg)
	})
	drained := func() bool { return m.sql("3.") == 0 }
	m.follow(drained, start, func() { stop() })
	stopTraffic()
	m.until("the forwarder has drained", drained)
	stop()
	if n := m.sql("4."); n != 0 {
		t.Errorf("%d messages are not sent", n)
	}
	m.arrived(func(r *kgo.Record) {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		if len(headers[wkafka.UUIDHeaderKey]) != 36 || headers["key"] != string(r.Key) {
			t.Errorf("a consumer of Watermill finds no UUID or metadata: %v", headers)
		}
	})
}

// publishing is the job of the guide.
type publishing struct {
	Topic   string `json:"topic"`
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

func (publishing) Kind() string { return "publish" }

type publishingWorker struct {
	river.WorkerDefaults[publishing]
	client *kgo.Client
}

func (w *publishingWorker) Work(ctx context.Context, job *river.Job[publishing]) error {
	return w.client.ProduceSync(ctx, &kgo.Record{Topic: job.Args.Topic, Key: []byte(job.Args.Key), Value: []byte(job.Args.Payload)}).FirstErr()
}

// TestGuideRiver follows the guide with River. One worker keeps the order that it can keep, so that the
// whole stream can be checked.
//
// Promises: L, O
func TestGuideRiver(t *testing.T) {
	m := openMove(t, "river.md")
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(riverpgxv5.New(m.pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &publishingWorker{client: m.kafka})
	stop := func() {}
	start := func() {
		r, err := river.NewClient(riverpgxv5.New(m.pool), &river.Config{
			FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond, Workers: workers, Logger: quiet,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}},
		})
		if err == nil {
			err = r.Start(context.WithoutCancel(t.Context()))
		}
		if err != nil {
			t.Fatal(err)
		}
		stop = func() {
			if err := r.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("River: %v", err)
			}
		}
	}
	start()
	inserter, err := river.NewClient(riverpgxv5.New(m.pool), &river.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	stopTraffic := m.traffic(func(tx pgx.Tx, key, payload string) error {
		_, err := inserter.InsertTx(t.Context(), tx, publishing{m.topic, key, payload}, nil)
		return err
	})
	drained := func() bool { return m.sql("3.") == 0 }
	m.follow(drained, start, func() { stop() })
	stopTraffic()
	m.until("River has drained", drained)
	stop()
	if n := m.sql("4."); n != 0 {
		t.Errorf("%d events are lost", n)
	}
	m.arrived(func(*kgo.Record) {})
}
