package brokers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// SNS describes FIFO topics of a moto server at an address, host:port: what a queue behind
// each topic gets. client is of the same server. The server numbers messages at random:
// Read has them in the order in which the queue gave them out. Readers keep the queue
// empty: for each request the server looks at all messages of a queue. So it drops
// repetitions only while the first copy is there. Close ends the readers.
func SNS(client *sqs.Client, addr, account string) *Broker {
	q := &emptied{simpleQueue: simpleQueue{client: client, unnumbered: true, taken: make(map[string][]stored)}, seen: make(map[string]bool)}
	life, end := context.WithCancel(context.Background())
	n := &notifications{root: "http://" + addr + "/", account: account}
	return &Broker{
		Name: "sns", Count: q.count, Read: q.read, Lease: hidden, Close: end,
		Make: func(ctx context.Context, t Topic) error {
			if err := q.make(ctx, t); err != nil {
				return err
			}
			for range readers {
				go q.follow(life, t.Name)
			}
			return n.make(ctx, t.Name+".fifo")
		},
	}
}

// readers take from a queue side by side: the server answers requests in turn, and a
// reader needs two for ten messages.
const readers = 4

// emptied is a queue that is kept empty. noting guards its fields.
type emptied struct {
	simpleQueue
	seen map[string]bool // message ids: one whose deletion was lost is received again
	err  error           // of the last request
}

// follow takes what the queue gets until life ends. The messages of a group are in the
// hands of one reader until they are noted and deleted.
func (q *emptied) follow(life context.Context, topic string) {
	for life.Err() == nil {
		n, err := q.page(life, topic)
		q.noting.Lock()
		q.err = err
		q.noting.Unlock()
		if n == 0 {
			select {
			case <-life.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func (q *emptied) page(life context.Context, topic string) (int, error) {
	ctx, cancel := context.WithTimeout(life, time.Minute)
	defer cancel()
	url, err := q.url(ctx, topic)
	if err != nil {
		return 0, err
	}
	return q.some(ctx, url, batch, q.seen, func(s stored) { q.taken[topic] = append(q.taken[topic], s) })
}

// count returns how much the queue has ever given.
func (q *emptied) count(_ context.Context, topic string) (int, error) {
	q.noting.Lock()
	defer q.noting.Unlock()
	return len(q.taken[topic]), q.err
}

func (q *emptied) read(_ context.Context, topic string, each func(Record)) error {
	q.noting.Lock()
	defer q.noting.Unlock()
	for _, s := range q.taken[topic] {
		each(s.Record)
	}
	return q.err
}

// notifications speaks the query protocol of SNS.
type notifications struct{ root, account string }

// make makes a topic with the queue of its name behind it.
func (n *notifications) make(ctx context.Context, name string) error {
	err := n.call(ctx, url.Values{
		"Action": {"CreateTopic"}, "Name": {name}, "Attributes.entry.1.key": {"FifoTopic"}, "Attributes.entry.1.value": {"true"},
	})
	if err != nil {
		return err
	}
	arn := func(service string) string { return "arn:aws:" + service + ":us-east-1:" + n.account + ":" + name }
	return n.call(ctx, url.Values{
		"Action": {"Subscribe"}, "TopicArn": {arn("sns")}, "Protocol": {"sqs"}, "Endpoint": {arn("sqs")},
		"Attributes.entry.1.key": {"RawMessageDelivery"}, "Attributes.entry.1.value": {"true"},
	})
}

func (n *notifications) call(ctx context.Context, in url.Values) error {
	in.Set("Version", "2010-03-31")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.root, strings.NewReader(in.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	// The server tells services apart by the scope of a signature, which it does not check.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("brokers: sns: %s: %s: %s", in.Get("Action"), resp.Status, body)
	}
	return err
}
