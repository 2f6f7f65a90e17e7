package kafkabroker_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
)

// forgetful is a sink that forgets its topic while a message waits for its leader, which a
// broker with old metadata has denied.
type forgetful struct {
	*kafkabroker.Sink
	cluster *kfake.Cluster
	key     string // of the message that waits
	release func() // lets the leader answer
	answers chan []error
	twice   atomic.Int64 // requests with two batches for one partition
}

func forgetting(t *testing.T) *forgetful {
	t.Helper()
	c := fake(t, 2)
	f := &forgetful{Sink: sinkOn(t, c.ListenAddrs(), 0), cluster: c, answers: make(chan []error, 3)}
	held, released := make(chan struct{}), make(chan struct{})
	f.release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(f.release)
	var first atomic.Bool
	c.ControlKey(0, func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		seen := make(map[string]bool)
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			for _, rp := range rt.Partitions {
				at := fmt.Sprint(rt.Topic, rt.TopicID, rp.Partition)
				if seen[at] {
					f.twice.Add(1)
				}
				seen[at] = true
			}
		}
		if first.CompareAndSwap(false, true) {
			close(held)
			c.SleepControl(func() { <-released })
		}
		return nil, nil, false
	})
	var keys [2]string
	for n := 0; keys[0] == "" || keys[1] == ""; n++ {
		key := string(rune('a' + n))
		keys[kafkabroker.PartitionOf(key, 2)] = key
	}
	f.key = keys[1]
	f.send(t, 0, keys[0])
	<-held
	f.send(t, 1, f.key)
	within(t, time.Minute, "the second message waits", func() bool { return f.Queued("orders", 1) == 1 })
	f.Forget("orders")
	return f
}

func (f *forgetful) send(t *testing.T, n int, key string) {
	t.Helper()
	go func() { f.answers <- f.Deliver(t.Context(), broker.Batch{Messages: some(n, 1, key)}) }()
}

// accepted waits until n calls have been acknowledged.
func (f *forgetful) accepted(t *testing.T, n int) {
	t.Helper()
	for range n {
		if errs := <-f.answers; errs != nil {
			t.Fatal(errs)
		}
	}
}

// stored checks that the log holds messages 0, 1 and 2.
func (f *forgetful) stored(t *testing.T) {
	t.Helper()
	got := strings.Fields(values(t, f.cluster.ListenAddrs(), "orders", 3))
	if slices.Sort(got); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("the log holds %s", got)
	}
}

// TestAForgottenTopicSharesNoNumbers: the messages behind the next lookup of a topic have
// sequence numbers of another producer than those that waited. Otherwise the broker takes the
// first batch for a repetition, and acknowledges it without storing it.
//
// Promises: L
func TestAForgottenTopicSharesNoNumbers(t *testing.T) {
	f := forgetting(t)
	f.release()
	f.accepted(t, 2)
	f.send(t, 2, f.key)
	f.accepted(t, 1)
	f.stored(t)
}

// TestAForgottenTopicSharesNoRequest: a request has one batch for a partition, although one
// waits from before the topic was forgotten. Of two batches a broker appends one.
//
// Promises: L
func TestAForgottenTopicSharesNoRequest(t *testing.T) {
	f := forgetting(t)
	f.send(t, 2, f.key)
	within(t, time.Minute, "the third message waits", func() bool { return f.Queued("orders", 1) == 1 })
	f.release()
	f.accepted(t, 3)
	f.stored(t)
	if n := f.twice.Load(); n > 0 {
		t.Errorf("%d requests have two batches for a partition", n)
	}
}

// TestAForgottenTopicContinuesItsNumbers: a transactional producer has one identity for all of
// its topics. So a topic that was forgotten and found again continues its sequence numbers.
//
// Promises: L
func TestAForgottenTopicContinuesItsNumbers(t *testing.T) {
	c := fake(t, 1)
	_, s := txSink(t, c.ListenAddrs()[0], "relay-0", 0)
	for n := range 2 {
		if errs := s.Deliver(t.Context(), broker.Batch{Messages: some(n, 1, "a")}); errs != nil {
			t.Fatal(errs)
		}
		s.Forget("orders")
	}
	if got := values(t, c.ListenAddrs(), "orders", 2); got != "0 1" {
		t.Errorf("the log holds %s", got)
	}
}
