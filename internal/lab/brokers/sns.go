package brokers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// SNS describes FIFO topics of a moto server at an address, host:port: what a queue behind
// each topic gets. client is of the same server. The server numbers messages at random:
// Read has them in the order in which the queue gave them out. Count takes what it counts:
// the server looks at all messages of a queue for each that it adds, and answers one
// request at a time. So it drops repetitions only while the first copy is there.
func SNS(client *sqs.Client, addr, account string) *Broker {
	q := &emptied{simpleQueue: simpleQueue{client: client, unnumbered: true, taken: make(map[string][]stored)}, seen: make(map[string]bool)}
	n := &notifications{root: "http://" + addr + "/", account: account}
	return &Broker{
		Name: "sns", Count: q.count, Read: q.read, Lease: hidden, Close: func() {},
		Make: func(ctx context.Context, t Topic) error {
			if err := q.make(ctx, t); err != nil {
				return err
			}
			return n.make(ctx, t.Name+".fifo")
		},
	}
}

// emptied is a queue that is kept empty.
type emptied struct {
	simpleQueue
	seen map[string]bool // message ids: one whose deletion was lost is received again
}

// readers take from a queue side by side: the server answers requests in turn, and two
// of a publisher's bring more than one reader takes.
const readers = 4

// count takes what the queue has, for two seconds at most, and returns how much it has
// ever given: a caller that waits for more counts again. The messages of a group are in
// the hands of one reader until they are noted and deleted.
func (q *emptied) count(ctx context.Context, topic string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	url, err := q.url(ctx, topic)
	if err != nil {
		return len(q.taken[topic]), err
	}
	errs := make([]error, readers)
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			n := 1
			for begun := time.Now(); n > 0 && errs[i] == nil && time.Since(begun) < 2*time.Second; {
				n, errs[i] = q.some(ctx, url, batch, q.seen, func(s stored) { q.taken[topic] = append(q.taken[topic], s) })
			}
		})
	}
	wg.Wait()
	return len(q.taken[topic]), errors.Join(errs...)
}

func (q *emptied) read(ctx context.Context, topic string, each func(Record)) error {
	for before := -1; ; {
		n, err := q.count(ctx, topic)
		if err != nil {
			return err
		}
		if n == before {
			break
		}
		before = n
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.taken[topic] {
		each(s.Record)
	}
	return nil
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
