package promises

import (
	"context"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/uuidv7"
	"github.com/postrider/postrider/outbox"
)

const bareInsert = `INSERT INTO postrider.outbox (id, topic, key, type, payload, content_type, headers, version, schema_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

func benchMessage() postrider.Message {
	return postrider.Message{
		Topic: "orders.placed", Key: "order-4711", Type: "order.placed", Payload: make([]byte, 500),
		ContentType: "application/json", Version: 3, SchemaVersion: 1,
	}
}

// BenchmarkEnqueue compares Enqueue with a bare INSERT of the same columns through the
// same driver. The two alternate by statement, in one transaction each, so that a busy
// machine slows both. It reports "x-bare" (one message against one bare INSERT) and
// "x-cheaper-in-100" (per message).
func BenchmarkEnqueue(b *testing.B) {
	for _, e := range enqueuers(b, postgresDB(b, "18")) {
		b.Run(e.name, func(b *testing.B) { benchEnqueue(b, e) })
	}
}

func benchEnqueue(b *testing.B, e enqueuer) {
	b.Helper()
	var (
		ctx                 = context.Background()
		ob                  = outbox.New(dialect.Postgres, nil)
		ids                 uuidv7.Generator
		m                   = benchMessage()
		hundred             = make([]postrider.Message, 100)
		bare, one, together time.Duration
	)
	for i := range hundred {
		hundred[i] = m
	}
	err := e.do(ctx, func(tx outbox.Tx) error {
		for i := 0; b.Loop(); i++ {
			t0 := time.Now()
			if _, err := tx.ExecContext(ctx, bareInsert, ids.New(), m.Topic, m.Key, m.Type, m.Payload, m.ContentType,
				`{}`, m.Version, m.SchemaVersion); err != nil {
				return err
			}
			t1 := time.Now()
			if err := ob.Enqueue(ctx, tx, m); err != nil {
				return err
			}
			t2 := time.Now()
			bare, one = bare+t1.Sub(t0), one+t2.Sub(t1)
			if i%20 == 0 {
				if err := ob.Enqueue(ctx, tx, hundred...); err != nil {
					return err
				}
				together += 20 * time.Since(t2)
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(bare.Nanoseconds())/float64(b.N), "bare-ns")
	b.ReportMetric(float64(one)/float64(bare), "x-bare")
	b.ReportMetric(float64(one)*100/float64(together), "x-cheaper-in-100")
}
