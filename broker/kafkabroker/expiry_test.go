package kafkabroker_test

import (
	"crypto/rand"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// onAnswer is a hook that runs when the answer to a request of one kind has been
// read and not yet returned to the caller.
type onAnswer struct {
	key   int16
	armed atomic.Bool
	run   func()
}

func (h *onAnswer) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == h.key && err == nil && h.armed.CompareAndSwap(true, false) {
		h.run()
	}
}

// transactionState returns the coordinator's state of a transactional id.
func transactionState(t *testing.T, client *kgo.Client, id string) kmsg.DescribeTransactionsResponseTransactionState {
	t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	resp, err := req.RequestWith(t.Context(), client)
	if err == nil && len(resp.TransactionStates) == 1 {
		err = kerr.ErrorForCode(resp.TransactionStates[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resp.TransactionStates[0]
}

// older makes a broker end transactions like one before Kafka 4.
func older(t *testing.T, admin *kgo.Client) {
	t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	up := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	up.Feature, up.MaxVersionLevel, up.UpgradeType = "transaction.version", 1, 2
	req.FeatureUpdates, req.TimeoutMillis = append(req.FeatureUpdates, up), 10_000
	resp, err := req.RequestWith(t.Context(), admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTransactionThatTimesOut: the broker aborts a transaction whose producer was silent
// for too long, and fences the producer. The sink continues when the network is
// back, unless another process has taken the id over meanwhile.
//
// Promises: S
func TestTransactionThatTimesOut(t *testing.T) {
	t.Parallel()
	soon := testserver.WithConfig("transaction.abort.timed.out.transaction.cleanup.interval.ms=500")
	addr := testserver.StartKafka(t, soon).Addr
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		t.Run("since Kafka 4", func(t *testing.T) { timesOut(t, addr).goesOn() })
	}
	older(t, direct(t, addr))
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		timesOut(t, addr).goesOn()
	})
	t.Run("taken over", func(t *testing.T) {
		t.Parallel()
		timesOut(t, addr).isFenced()
	})
}

// late is a sink whose second transaction was aborted by the broker without its
// knowledge.
type late struct {
	*testing.T
	addr, topic string
	sink        broker.Sink
	proxy       *faultproxy.Proxy
}

func timesOut(t *testing.T, addr string) *late {
	t.Helper()
	l := &late{T: t, addr: addr, topic: "late" + rand.Text()}
	create(t, addr, l.topic, 4)
	var through kgo.Opt
	l.proxy, through = proxied(t, addr)
	cut := &onAnswer{key: kmsg.Produce.Int16(), run: func() { l.proxy.Cut(0) }}
	_, l.sink = txSink(t, addr, l.topic, time.Second, through, kgo.WithHooks(cut))
	within(t, time.Minute, "the first transaction", func() bool { return l.sink.Deliver(t.Context(), broker.Batch{Messages: group(l.topic, 1, 20)}) == nil })
	cut.armed.Store(true)
	within(t, time.Minute, "the broker answers a produce request of the second transaction", func() bool { // a slow broker has not opened it within the sink's timeout
		if errs := l.sink.Deliver(t.Context(), broker.Batch{Messages: group(l.topic, 2, 20)}); errs == nil {
			t.Fatal("acknowledged without an answer")
		}
		return !cut.armed.Load()
	})
	admin := direct(t, addr)
	within(t, 2*time.Minute, "the broker ends the transaction", func() bool {
		return transactionState(t, admin, l.topic).State == "CompleteAbort"
	})
	return l
}

func (l *late) goesOn() {
	l.proxy.Restore()
	within(l.T, 2*time.Minute, "the sink continues", func() bool {
		errs := l.sink.Deliver(l.Context(), broker.Batch{Messages: group(l.topic, 3, 20)})
		if errs != nil && strings.Contains(errs[0].Error(), "taken the transactional id over") {
			l.Fatal(errs[0])
		}
		return errs == nil
	})
	if seen := callsOf(l.T, l.addr, l.topic); seen["call1"] < 20 || seen["call2"] != 0 || seen["call3"] < 20 {
		l.Errorf("messages seen by call: %v", seen)
	}
}

func (l *late) isFenced() {
	_, second := txSink(l.T, l.addr, l.topic, 10*time.Second)
	if errs := second.Deliver(l.Context(), broker.Batch{Messages: group(l.topic, 4, 20)}); errs != nil {
		l.Fatal(errs)
	}
	l.proxy.Restore()
	within(l.T, time.Minute, "the first one is fenced", func() bool {
		errs := l.sink.Deliver(l.Context(), broker.Batch{Messages: group(l.topic, 3, 20)})
		if errs == nil {
			l.Fatal("the fenced sink continues")
		}
		return strings.Contains(errs[0].Error(), "taken the transactional id over")
	})
	if errs := second.Deliver(l.Context(), broker.Batch{Messages: group(l.topic, 4, 20)}); errs != nil {
		l.Errorf("the second sink does not continue: %v", errs[0])
	}
}
