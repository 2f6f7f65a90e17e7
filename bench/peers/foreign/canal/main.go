//go:build ignore

// Command canal is a relay made of go-mysql's canal and a Kafka client: it publishes each
// inserted row without waiting, and notes once a second how far all rows are acknowledged.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(database, addr, topic string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flavor, rest, _ := strings.Cut(database, "://root@")
	host, name, _ := strings.Cut(rest, "/")
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerLinger(time.Millisecond), kgo.MaxBufferedRecords(20_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return err
	}
	defer client.Close()
	conf := canal.NewDefaultConfig()
	conf.Addr, conf.User, conf.Flavor = host, "root", flavor
	conf.Dump.ExecutionPath = "" // no snapshot: it begins at a position
	conf.IncludeTableRegex = []string{"^" + name + "\\.events$"}
	conf.Logger = slog.New(slog.DiscardHandler)
	c, err := canal.NewCanal(conf)
	if err != nil {
		return err
	}
	at, err := c.Execute("SELECT file, at FROM " + name + ".canal_position")
	if err != nil {
		return err
	}
	file, err := at.GetString(0, 0)
	if err != nil {
		return err
	}
	pos, err := at.GetInt(0, 1)
	if err != nil {
		return err
	}
	h := &handler{ctx: ctx, client: client, topic: topic, failed: make(chan error, 1)}
	c.SetEventHandler(h)
	ended := make(chan error, 1)
	go func() { ended <- c.RunFrom(mysql.Position{Name: file, Pos: uint32(pos)}) }()
	defer c.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var noted mysql.Position
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return fmt.Errorf("the canal ended: %w", err)
		case err := <-h.failed:
			return err
		case <-tick.C:
		}
		h.mu.Lock()
		next := h.next
		h.mu.Unlock()
		if next == noted {
			continue
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		if _, err := c.Execute("UPDATE "+name+".canal_position SET file = ?, at = ?", next.Name, next.Pos); err != nil {
			return err
		}
		noted = next
	}
}

type handler struct {
	canal.DummyEventHandler
	ctx    context.Context
	client *kgo.Client
	topic  string
	failed chan error

	mu   sync.Mutex
	next mysql.Position // behind the last transaction that was handed to the client
}

// OnRow publishes aggregateid and payload, the fourth and the sixth column.
func (h *handler) OnRow(e *canal.RowsEvent) error {
	if e.Action != canal.InsertAction {
		return nil
	}
	for _, row := range e.Rows {
		r := &kgo.Record{Topic: h.topic, Key: bytesOf(row[3]), Value: bytesOf(row[5])}
		h.client.Produce(h.ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case h.failed <- err:
				default:
				}
			}
		})
	}
	return nil
}

func (h *handler) OnXID(_ *replication.EventHeader, next mysql.Position) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = next
	return nil
}

func bytesOf(v any) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}
