package brokers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// PubSub describes Google's emulator of Cloud Pub/Sub at an address, host:port, through
// the service's REST interface. A topic has one subscription, which keeps the order of
// keys if that is asked for: the emulator then keeps a thread for each key that it has ever
// seen. The emulator numbers what it stores, and Read sorts by that number. It cannot
// count a subscription's messages: Count and Read take them, Lag is nil.
func PubSub(addr, project string) *Broker {
	p := &pubSub{
		root: "http://" + addr + "/v1/projects/" + project, project: project, taken: make(map[string]*log),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}},
	}
	return &Broker{
		Name: "pubsub", Make: p.make, Remove: p.remove, Count: p.count, Read: p.read, Follow: p.follow, Publish: p.publish,
		Lease: lease, Close: p.http.CloseIdleConnections,
	}
}

// pubSub keeps the messages that it has taken: a subscription delivers each once.
type pubSub struct {
	root, project string
	http          *http.Client

	mu    sync.Mutex
	taken map[string]*log
}

// log has a topic's messages in the order of their arrival.
type log struct {
	seen map[int]bool // a message is delivered again after its lease if an answer was lost
	all  []numbered
}

type numbered struct {
	Record
	number int
}

// lease is the shortest that the service has. A request that a frozen emulator answers after
// its client has gone hides up to a thousand messages for so long.
const lease = 10 * time.Second

// reading is the name of the topic's subscription.
func reading(topic string) string { return topic + "-read" }

func (p *pubSub) make(ctx context.Context, t Topic) error {
	if err := p.call(ctx, http.MethodPut, "/topics/"+t.Name, map[string]any{}, nil); err != nil {
		return err
	}
	return p.call(ctx, http.MethodPut, "/subscriptions/"+reading(t.Name), map[string]any{
		"topic": "projects/" + p.project + "/topics/" + t.Name, "enableMessageOrdering": t.Ordered, "ackDeadlineSeconds": int(lease.Seconds()),
	}, nil)
}

func (p *pubSub) remove(ctx context.Context, topic string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, topic)
	for _, path := range []string{"/subscriptions/" + reading(topic), "/topics/" + topic} {
		if err := p.call(ctx, http.MethodDelete, path, nil, nil); err != nil && !isMissing(err) {
			return err
		}
	}
	return nil
}

func (p *pubSub) publish(ctx context.Context, topic string, page []Message) error {
	type message struct {
		Data        []byte            `json:"data"`
		Attributes  map[string]string `json:"attributes,omitempty"`
		OrderingKey string            `json:"orderingKey,omitempty"`
	}
	in := struct {
		Messages []message `json:"messages"`
	}{make([]message, len(page))}
	for i, m := range page {
		attributes := make(map[string]string, len(m.Headers))
		for _, h := range m.Headers {
			attributes[h[0]] = h[1]
		}
		in.Messages[i] = message{m.Payload, attributes, m.Key}
	}
	var out struct {
		MessageIDs []string `json:"messageIds"`
	}
	if err := p.call(ctx, http.MethodPost, "/topics/"+topic+":publish", in, &out); err != nil {
		return err
	}
	if len(out.MessageIDs) != len(page) {
		return errUnconfirmed
	}
	return nil
}

func (p *pubSub) count(ctx context.Context, topic string) (int, error) {
	all, err := p.take(ctx, topic)
	return len(all), err
}

func (p *pubSub) read(ctx context.Context, topic string, each func(Record)) error {
	all, err := p.take(ctx, topic)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	for _, m := range all {
		each(m.Record)
	}
	return nil
}

func (p *pubSub) follow(ctx context.Context, topic string, n int, each func(Record)) error {
	for got, since := 0, time.Now(); got < n; {
		all, err := p.take(ctx, topic)
		if err != nil {
			return err
		}
		for ; got < min(len(all), n); got++ {
			each(all[got].Record)
			since = time.Now()
		}
		if time.Since(since) > silence {
			return silent(got, n)
		}
	}
	return nil
}

// take takes what the subscription has and returns a copy of the topic's log. If ctx has
// a deadline, take stops half way to it: messages may arrive faster than they are taken.
func (p *pubSub) take(ctx context.Context, topic string) ([]numbered, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.taken[topic]
	if l == nil {
		l = &log{seen: make(map[int]bool)}
		p.taken[topic] = l
	}
	deadline, bounded := ctx.Deadline()
	enough := time.Now().Add(time.Until(deadline) / 2)
	for {
		n, err := p.pull(ctx, topic, l)
		if err != nil {
			return nil, err
		}
		if n == 0 || bounded && time.Now().After(enough) {
			return slices.Clone(l.all), nil
		}
	}
}

// pull takes at most a thousand messages.
func (p *pubSub) pull(ctx context.Context, topic string, l *log) (int, error) {
	var out struct {
		ReceivedMessages []struct {
			AckID   string `json:"ackId"`
			Message struct {
				Data        []byte    `json:"data"`
				MessageID   string    `json:"messageId"`
				PublishTime time.Time `json:"publishTime"`
			} `json:"message"`
		} `json:"receivedMessages"`
	}
	path := "/subscriptions/" + reading(topic)
	if err := p.call(ctx, http.MethodPost, path+":pull", map[string]any{"maxMessages": 1000, "returnImmediately": true}, &out); err != nil {
		return 0, err
	}
	ids := make([]string, len(out.ReceivedMessages))
	for i, m := range out.ReceivedMessages {
		number, err := strconv.Atoi(m.Message.MessageID)
		if err != nil {
			return 0, fmt.Errorf("brokers: the emulator's message id is not a number: %w", err)
		}
		if ids[i] = m.AckID; !l.seen[number] {
			l.seen[number] = true
			l.all = append(l.all, numbered{Record{m.Message.Data, m.Message.PublishTime, "message " + m.Message.MessageID}, number})
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	return len(ids), p.call(ctx, http.MethodPost, path+":acknowledge", map[string]any{"ackIds": ids}, nil)
}

// statusError is an answer that is no success.
type statusError struct {
	what   string
	status int
	body   []byte
}

func (e *statusError) Error() string {
	return fmt.Sprintf("brokers: pubsub: %s: HTTP %d: %s", e.what, e.status, e.body)
}

func isMissing(err error) bool {
	e, ok := err.(*statusError) //nolint:errorlint // call returns it as it is
	return ok && e.status == http.StatusNotFound
}

// call sends in as JSON and reads the answer into out, unless they are nil.
func (p *pubSub) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.root+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &statusError{method + " " + path, resp.StatusCode, text}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
