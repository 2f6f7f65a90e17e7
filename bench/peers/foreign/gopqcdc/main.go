//go:build ignore

// Command gopqcdc is a relay made of go-pq-cdc and a Kafka client: it publishes each inserted
// row without waiting, and confirms the log as far as all rows are acknowledged.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	cdc "github.com/Trendyol/go-pq-cdc"
	"github.com/Trendyol/go-pq-cdc/config"
	"github.com/Trendyol/go-pq-cdc/pq/message/format"
	"github.com/Trendyol/go-pq-cdc/pq/publication"
	"github.com/Trendyol/go-pq-cdc/pq/replication"
	"github.com/Trendyol/go-pq-cdc/pq/slot"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// sent is a row whose publication is under way.
type sent struct {
	done chan error
	ack  func() error
}

func run(database, addr, topic, slotName string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conf, err := pgx.ParseConfig(database)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerLinger(time.Millisecond), kgo.MaxBufferedRecords(20_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return err
	}
	defer client.Close()
	password := conf.Password
	if password == "" {
		password = "unused"
	}
	metrics, err := freePort()
	if err != nil {
		return err
	}
	waiting := make(chan sent, 20_000)
	go func() { // in the order of the log
		for s := range waiting {
			if err := <-s.done; err != nil {
				fmt.Fprintln(os.Stderr, "publish:", err)
				os.Exit(1)
			}
			if err := s.ack(); err != nil {
				fmt.Fprintln(os.Stderr, "confirm:", err)
				os.Exit(1)
			}
		}
	}()
	connector, err := cdc.NewConnector(ctx, config.Config{
		Host: conf.Host, Port: int(conf.Port), Username: conf.User, Password: password, Database: conf.Database,
		Publication: publication.Config{
			Name:       "events",
			Operations: publication.Operations{publication.OperationInsert},
			Tables:     publication.Tables{{Name: "events", Schema: "public", ReplicaIdentity: publication.ReplicaIdentityDefault}},
		},
		Slot:   slot.Config{Name: slotName, SlotActivityCheckerInterval: 3000, ProtoVersion: 1},
		Metric: config.MetricConfig{Port: metrics},
		Logger: config.LoggerConfig{LogLevel: slog.LevelError},
	}, func(c *replication.ListenerContext) {
		row, ok := c.Message.(*format.Insert)
		if !ok {
			return
		}
		s := sent{make(chan error, 1), c.Ack}
		key, _ := row.Decoded["aggregateid"].(string)
		payload, _ := row.Decoded["payload"].([]byte)
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: payload}, func(_ *kgo.Record, err error) { s.done <- err })
		waiting <- s
	})
	if err != nil {
		return err
	}
	go func() { <-ctx.Done(); connector.Close(); os.Exit(0) }()
	connector.Start(ctx)
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}
