package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// An operator pauses a key. No relay lives here, so that Execute takes the lane
// for a moment.
func ExampleExecute() {
	st := memstore.New(nil)
	results, err := admin.Execute(context.Background(), st, st.Office().Admin, []store.Act{
		{Kind: store.ActPause, Key: "order-7", Actor: "ann", Reason: "the warehouse is being counted"},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(results[0].Result)
	// Output: done
}

func ExampleFind() {
	st := memstore.New(nil)
	_, err := admin.Find(context.Background(), st.Office().Admin, 2003, true)
	fmt.Println(err)
	// Output: parked record 2003: not found
}

// A service of its own removes settled rows after a week and compares the books
// every minute. The store in memory keeps none.
func ExampleNewKeeper() {
	st := memstore.New(nil) // pgstore.New(pool, nil) in production
	keeper, err := admin.NewKeeper(st.Office(), &admin.KeeperOptions{
		OlderThan: admin.DefaultRetention, AuditEvery: time.Minute, Archive: admin.ArchiveTo("/var/lib/outbox"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	keeper.Run(ctx)
	// Output: retention: not supported by this store (memory): nothing in memory survives the process; PostgreSQL has all of this
}

func ExampleArchiveBy() {
	options := admin.KeeperOptions{OlderThan: time.Hour, Archive: admin.ArchiveBy("aws s3 cp - s3://archive/$(date +%s%N).jsonl", os.Stderr)}
	fmt.Println(options.OlderThan)
	// Output: 1h0m0s
}

// Check shows what a broker would get of a message, without sending it.
func ExampleCheck() {
	sink := membroker.New(nil).Sink()
	checked, err := admin.Check(sink, "main", []postrider.Message{{Topic: "orders", Key: "order-7", Type: "order.placed", Payload: []byte(`{}`)}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(checked[0].Destination, checked[0].Key, checked[0].Payload)
	// Output: orders order-7 2
}

// The doctor of an outbox and that of its broker answer in one diagnosis.
func ExampleExamine() {
	sink := membroker.New(nil).Sink()
	topics := func(context.Context) ([]string, error) { return []string{"orders"}, nil }
	found, err := admin.Examine(context.Background(), ops.ExamineRequest{}, admin.Destinations(sink, topics))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found.Worst, found.Findings[0].Check)
	// Output: ok broker
}

// HorizonOf tells a consumer for how long its inbox has to remember a message.
func ExampleHorizonOf() {
	h, err := admin.HorizonOf(context.Background(), membroker.New(nil).Sink(), []string{"orders"}, 72*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(h.For)
	// Output: 72h0m0s
}

// All dead letters with one code are sent again, a hundred a second.
func ExampleFollow() {
	var st store.Store // pgstore.New(pool, nil)
	var office *ops.Office
	retry := func(ctx context.Context) error {
		if err := office.Need(ops.CanOrder); err != nil {
			return err
		}
		id, plan, err := office.Orders.Order(ctx, ops.Order{
			Kind: store.ActRetry, Match: ops.Match{Code: "TOO_LARGE"}, Rate: 100, Actor: "ann", Reason: "the limit was raised",
		})
		if err != nil {
			return err
		}
		state, err := admin.Follow(ctx, st, office, id, nil, func(s ops.OrderState) { log.Printf("%d of %d", s.Moved, plan.Records) })
		log.Println("done:", state.Done)
		return err
	}
	_ = retry
}

// A person asked for the deletion of all personal data.
func ExampleErase() {
	erase := func(ctx context.Context, office *ops.Office) error {
		req := admin.EraseRequest{Wait: time.Minute}
		req.Key, req.Actor, req.Reason = "customer-12", "ann", "ticket 4711"
		done, err := admin.Erase(ctx, office, req, nil)
		log.Printf("%d messages erased, %d dead letters discarded", done.Rows, done.Discarded)
		return err
	}
	_ = erase
}

func ExampleTend() {
	tend := func(ctx context.Context, office *ops.Office) error {
		done, err := admin.Tend(ctx, office, ops.TendRequest{OlderThan: admin.DefaultRetention})
		log.Printf("%d partitions made, %d dropped; alarm %q", done.Made, done.Dropped, done.Alarm())
		return err
	}
	_ = tend
}

// A consumer that misses versions of a key orders them from the outbox.
func ExampleSendMissing() {
	onGap, err := admin.SendMissing(memstore.New(nil).Office(), "billing", nil)
	fmt.Println(onGap == nil, err) // else consumer.Options{OnGap: onGap}
	// Output: true acts on many records: not supported by this store (memory): nothing in memory survives the process; PostgreSQL has all of this
}

// Inboxes are read and repaired like an outbox.
func ExampleInboxes() {
	show := func(ctx context.Context, boxes admin.Inboxes) error {
		all, err := boxes.Status(ctx)
		for _, c := range all {
			log.Println(c.Consumer, c.Dead)
		}
		return err
	}
	_ = show
	_ = admin.Inboxes{Dialect: dialect.Postgres} // with DB, the consumers' own database
}

func ExampleNewHistory() {
	office := memstore.New(nil).Office()
	if _, err := admin.NewHistory(office, ops.PointEvery); errors.Is(err, ops.ErrUnsupported) {
		fmt.Println("this store keeps no history")
	}
	// Output: this store keeps no history
}
