package private

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
)

// SQS describes a running ElasticMQ. One that writes its messages has a gate before it.
func SQS(s *testserver.ElasticMQ) (*brokers.Broker, error) {
	b := brokers.SQS(simpleQueues(s.Addr))
	r := &restoring{Process: s, count: b.Count, seen: make(map[string]int)}
	addr := s.Addr
	if s.Writes {
		g, err := newGate(s)
		if err != nil {
			return nil, err
		}
		r.Process, addr = g, g.addr
		b.Close = g.close
	}
	create, remove, follow := b.Make, b.Remove, b.Follow
	b.Make = func(ctx context.Context, t brokers.Topic) error {
		err := create(ctx, t)
		if err == nil {
			r.note(t.Name, 0)
		}
		return err
	}
	b.Remove = func(ctx context.Context, topic string) error { r.forget(topic); return remove(ctx, topic) }
	b.Follow = func(ctx context.Context, topic string, n int, each func(brokers.Record)) error {
		r.forget(topic)
		return follow(ctx, topic, n, each)
	}
	b.Count = func(ctx context.Context, topic string) (int, error) {
		n, err := r.count(ctx, topic)
		if err == nil {
			r.note(topic, n)
		}
		return n, err
	}
	b.URL, b.Process, b.PID = "sqs://key:secret@us-east-1?endpoint=http://"+addr, r, s.PID
	return b, nil
}

func simpleQueues(addr string) *sqs.Client {
	keys := aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}
	return sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + addr), Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil }),
	})
}

// LaunchSNS starts a server with topics and the queues behind them, which writes its
// messages. The description has no consumers.
func LaunchSNS(ctx context.Context) (*brokers.Broker, error) {
	s, err := testserver.LaunchFauxqs(ctx, "")
	if err != nil {
		return nil, err
	}
	b := brokers.SNS(simpleQueues(s.Addr), &brokers.Topics{Addr: s.Addr, Account: testserver.FauxqsAccount})
	b.URL = "sns://key:secret@us-east-1?account=" + testserver.FauxqsAccount + "&endpoint=http://" + s.Addr
	b.Process, b.PID = s, s.PID
	return closing(s, b, nil)
}

// restoring is a server that still restores its queues when it begins to reply.
type restoring struct {
	brokers.Process
	count func(ctx context.Context, topic string) (int, error)

	mu   sync.Mutex
	seen map[string]int // the last count of each topic
}

func (r *restoring) note(topic string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[topic] = max(r.seen[topic], n)
}

func (r *restoring) forget(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, topic)
}

// Restart returns when the queues contain their last counts.
func (r *restoring) Restart() error {
	if err := r.Process.Restart(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	r.mu.Lock()
	seen := maps.Clone(r.seen)
	r.mu.Unlock()
	for topic, want := range seen {
		for {
			n, err := r.count(ctx, topic)
			if err == nil && n >= want {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("private: restart: queue %s has %d of %d messages: %w", topic, n, want, err)
			}
		}
	}
	return nil
}
