package awsbroker_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// published are the cases that run on moto, which needs minutes for the others.
var published = []string{
	"sink/exact", "sink/headers", "sink/time", "sink/empty", "sink/missing", "sink/rejected", "sink/again", "sink/dedup",
	"sink/pipes", "sink/context", "sink/injection", "sink/mute", "sink/ping",
}

// TestTopics runs some of the suite on FIFO topics; what arrives is read from a queue
// that subscribes with raw delivery.
//
// Promises: L, O
func TestTopics(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedMoto(t).Addr
	brokertest.RunSome(t, published, func(t *testing.T) *brokertest.Env {
		e := topicEnv(t, addr, testserver.MotoAccount, "")
		e.Server = "SNS FIFO to SQS, moto " + testserver.MotoVersion
		return e
	})
}

// TestTopicsKept runs the suite on a second server, which fails entries one by one.
//
// Promises: L, O
func TestTopicsKept(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedFauxqs(t).Addr
	brokertest.RunSome(t, []string{"sink/"}, func(t *testing.T) *brokertest.Env {
		e := topicEnv(t, addr, testserver.FauxqsAccount, "")
		e.Server = "SNS FIFO to SQS, fauxqs " + testserver.FauxqsVersion
		return e
	})
}

// TestStandardTopic: what a standard topic can keep: it has no order, and drops no
// repetitions.
func TestStandardTopic(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedMoto(t).Addr
	cases := []string{"sink/exact", "sink/headers", "sink/empty", "sink/missing"}
	brokertest.RunSome(t, cases, func(t *testing.T) *brokertest.Env {
		e := topicEnv(t, addr, testserver.MotoAccount, "&type=standard&prefix=shop-")
		e.Server = "SNS standard to SQS, moto " + testserver.MotoVersion
		return e
	})
}

// fanOut is a topic of each name with a queue of the same name behind it. It speaks the
// service's own protocol.
type fanOut struct {
	*server
	account string
}

const snsLimit = 256 << 10

func topicEnv(t *testing.T, addr, account, params string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, addr)
	topic := "orders" + rand.Text()
	q := &fanOut{&server{addr: addr, suffix: ".fifo", logs: make(map[string][]postrider.Message)}, account}
	if strings.Contains(params, "type=standard") {
		q.suffix = ""
	}
	if strings.Contains(params, "prefix=shop-") {
		q.prefix = "shop-"
	}
	must(t, q.create(t.Context(), topic))
	client := open(t, topicAddress(through, account, params), nil)
	return &brokertest.Env{
		Sink: client, Topic: topic, Missing: "nowhere" + rand.Text(), TooLarge: snsLimit + 1, Largest: snsLimit/4*3 - 2000,
		Log:   func(ctx context.Context) ([]postrider.Message, error) { return q.log(ctx, topic) },
		LogOf: q.log,
		Operator: brokertest.Operator{
			Make: func(ctx context.Context) (string, error) {
				made := "made" + rand.Text()
				return made, q.create(ctx, made)
			},
			Delete: func(ctx context.Context, topic string) error {
				return q.action(ctx, url.Values{"Action": {"DeleteTopic"}, "TopicArn": {q.arn("sns", topic)}})
			},
			Again: q.subscribe,
		},
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			return open(t, topicAddress(addr, account, params), &awsbroker.SinkOptions{Route: route}), nil
		},
		Faults: form{proxy}, Second: open(t, topicAddress(addr, account, params), nil), Stop: client.Close,
		Without: map[string]string{
			"sink/refused": "topics have one limit for a message's size, which the sink knows",
			"sink/full":    "a topic is never full",
			"sink/formats": "a topic has no source: TestTopicToQueues reads what arrives in queues",
			"sink/revoked": "moto has no permissions: TestTopicAnswers is about them",
		},
	}
}

func topicAddress(addr, account, params string) string {
	return "sns://key:secret@us-east-1?account=" + account + "&endpoint=http://" + addr + params
}

// form is a proxy that knows payloads as SNS carries them.
type form struct{ *faultproxy.Proxy }

func (f form) HangUp(poison []byte) {
	f.Proxy.HangUp([]byte(url.QueryEscape(base64.StdEncoding.EncodeToString(poison))))
}

func (q *fanOut) arn(service, topic string) string {
	return "arn:aws:" + service + ":us-east-1:" + q.account + ":" + q.name(topic)
}

// create makes a queue, and a topic to which it subscribes.
func (q *fanOut) create(ctx context.Context, topic string) error {
	if err := q.server.create(ctx, topic); err != nil {
		return err
	}
	return q.subscribe(ctx, topic)
}

func (q *fanOut) subscribe(ctx context.Context, topic string) error {
	made := url.Values{"Action": {"CreateTopic"}, "Name": {q.name(topic)}}
	if q.suffix != "" {
		made.Set("Attributes.entry.1.key", "FifoTopic")
		made.Set("Attributes.entry.1.value", "true")
	}
	if err := q.action(ctx, made); err != nil {
		return err
	}
	return q.action(ctx, url.Values{
		"Action": {"Subscribe"}, "TopicArn": {q.arn("sns", topic)}, "Protocol": {"sqs"}, "Endpoint": {q.arn("sqs", topic)},
		"Attributes.entry.1.key": {"RawMessageDelivery"}, "Attributes.entry.1.value": {"true"},
	})
}

// scope is a signature that names the service, by which moto tells requests apart.
func scope(service string) string {
	return "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/" + service + "/aws4_request, SignedHeaders=host, Signature=0"
}

func (q *fanOut) action(ctx context.Context, in url.Values) error {
	in.Set("Version", "2010-03-31")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.addr+"/", strings.NewReader(in.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", scope("sns"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", in.Get("Action"), resp.Status, body)
	}
	return err
}

// TestTopicOrder: a topic's queue has the messages of each key in order, also when a call
// breaks and is repeated.
//
// Promises: L, O
func TestTopicOrder(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedMoto(t).Addr
	proxy, through := proxied(t, addr)
	topic := "orders" + rand.Text()
	q := &fanOut{&server{addr: addr, suffix: ".fifo", logs: make(map[string][]postrider.Message)}, testserver.MotoAccount}
	must(t, q.create(t.Context(), topic))
	sink := open(t, topicAddress(through, testserver.MotoAccount, ""), nil)
	var msgs []postrider.Message
	for n := range 60 {
		m := message(n, fmt.Sprint("k", n%6), fmt.Sprint(n/6))
		m.Topic = topic
		msgs = append(msgs, m)
	}
	proxy.Cut(20_000)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs == nil {
		t.Error("the connection broke, and all messages were accepted")
	}
	proxy.Restore()
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	log, err := q.log(t.Context(), topic)
	must(t, err)
	next := make(map[string]int)
	for _, m := range log {
		if string(m.Payload) != fmt.Sprint(next[m.Key]) {
			t.Errorf("%s: message %s, want %d", m.Key, m.Payload, next[m.Key])
		}
		next[m.Key]++
	}
	if len(log) != len(msgs) {
		t.Errorf("%d messages, want %d", len(log), len(msgs))
	}
}

// TestTopicToQueues: the source receives from a FIFO queue and from a standard queue what
// the sink has published to a topic, with topic and key.
func TestTopicToQueues(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "&type=standard"} {
		addr := testserver.SharedMoto(t).Addr
		topic := "orders" + rand.Text()
		q := &fanOut{&server{addr: addr, suffix: ".fifo"}, testserver.MotoAccount}
		if kind != "" {
			q.suffix = ""
		}
		must(t, q.create(t.Context(), topic))
		sink := open(t, topicAddress(addr, testserver.MotoAccount, kind), nil)
		want := make(map[string]postrider.Message)
		var msgs []postrider.Message
		for n, key := range []string{"", "a", "b", strings.Repeat("k", 200)} {
			m := message(n, key, fmt.Sprint("payload ", n))
			m.Topic, m.Type, m.Headers = topic, "order.placed", map[string]string{"tenant": "x"}
			msgs, want[m.ID] = append(msgs, m), m
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
		from, err := awsbroker.OpenSource("sqs://key:secret@us-east-1?wait=1s&endpoint=http://"+addr+kind, &awsbroker.SourceOptions{Queue: topic})
		must(t, err)
		t.Cleanup(from.Close)
		for len(want) > 0 {
			for _, d := range receive(t, from, 10) {
				m := want[d.Message.ID]
				if d.Err != nil || d.Message.Topic != topic || d.Message.Key != m.Key || string(d.Message.Payload) != string(m.Payload) || d.Message.Headers["tenant"] != "x" {
					t.Errorf("%q: received %+v, want %+v: %v", kind, d.Message, m, d.Err)
				}
				delete(want, d.Message.ID)
				must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
			}
		}
	}
}

// publisher is a service that denies, throttles and fails single entries of SNS.
type publisher struct {
	*httptest.Server
	answer func(in url.Values) (status int, code, message string)
	fail   map[string]failure // entries, by their payload
	list   string             // subscriptions

	mu    sync.Mutex
	calls [][]string // payloads of each PublishBatch
}

func publishing(t *testing.T, p *publisher) *publisher {
	t.Helper()
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *publisher) serve(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	if p.answer != nil {
		if status, code, message := p.answer(r.PostForm); status != 0 {
			w.WriteHeader(status)
			fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, code, message)
			return
		}
	}
	var ok, failed strings.Builder
	var sent []string
	for n := 1; r.PostForm.Has(fmt.Sprintf("PublishBatchRequestEntries.member.%d.Id", n)); n++ {
		field := func(name string) string {
			return r.PostForm.Get(fmt.Sprintf("PublishBatchRequestEntries.member.%d.%s", n, name))
		}
		sent = append(sent, field("Message"))
		if f, bad := p.fail[field("Message")]; bad {
			fmt.Fprintf(&failed, `<member><Id>%s</Id><Code>%s</Code><SenderFault>%v</SenderFault><Message>no</Message></member>`, field("Id"), f.code, f.sender)
		} else {
			fmt.Fprintf(&ok, `<member><Id>%s</Id><MessageId>m</MessageId></member>`, field("Id"))
		}
	}
	action := r.PostForm.Get("Action")
	if action == "PublishBatch" {
		p.mu.Lock()
		p.calls = append(p.calls, sent)
		p.mu.Unlock()
	}
	fmt.Fprintf(w, `<%[1]sResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><%[1]sResult><Successful>%[2]s</Successful><Failed>%[3]s</Failed><Subscriptions>%[4]s</Subscriptions></%[1]sResult></%[1]sResponse>`,
		action, ok.String(), failed.String(), p.list)
}

func (p *publisher) sink(t *testing.T) *awsbroker.Sink {
	t.Helper()
	return open(t, "sns://key:secret@us-east-1?account=123456789012&endpoint="+p.URL, &awsbroker.SinkOptions{Timeout: 5 * time.Second})
}

// TestTopicPartialFailure: entries of a batch fail one by one. Nothing of a key is
// published behind its failed entry, and the other keys continue.
//
// Promises: L, O
func TestTopicPartialFailure(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]broker.Class{
		"InternalError": broker.ClassUnknown, "InvalidParameter": broker.ClassRejected, "Throttled": broker.ClassThrottled,
		"AuthorizationError": broker.ClassOutage, "KMSDisabled": broker.ClassOutage,
	} {
		p := publishing(t, &publisher{fail: map[string]failure{"a2": {code, code == "InvalidParameter"}}})
		errs := p.sink(t).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{
			message(1, "a", "a1"), message(2, "b", "b1"), message(3, "a", "a2"), message(4, "b", "b2"), message(5, "a", "a3"), message(6, "b", "b3"),
		}})
		for i, err := range errs {
			if bad := i == 2 || i == 4; bad != (err != nil) {
				t.Errorf("%s: message %d: %v", code, i, err)
			}
		}
		if got := broker.Classify(errs[2]).Class; got != want {
			t.Errorf("%s is %v, want %v", code, got, want)
		}
		for _, sent := range p.calls {
			if slices.Contains(sent, "a3") || slices.Contains(sent, "a1") && slices.Contains(sent, "a2") {
				t.Errorf("%s: sent %v", code, p.calls)
			}
		}
	}
}

// TestTopicAnswers: the class, code and remedy of what SNS answers.
func TestTopicAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		code, message string
		class         broker.Class
		want, says    string
	}{
		{404, "NotFound", "Topic does not exist", broker.ClassOutage, "TOPIC_MISSING", "aws sns create-topic --name orders.fifo --attributes FifoTopic=true"},
		{403, "AuthorizationError", "no", broker.ClassOutage, "ACCESS_DENIED", "allow sns:Publish on topic orders.fifo"},
		{400, "Throttled", "slow down", broker.ClassThrottled, "THROTTLED", ""},
		{400, "KMSAccessDenied", "no", broker.ClassOutage, "KMS", "topic's key"},
		{403, "InvalidClientTokenId", "no", broker.ClassOutage, "CREDENTIALS", "check access key"},
		{400, "InvalidParameter", "Invalid parameter: TopicArn", broker.ClassOutage, "InvalidParameter", ""},
		{400, "InvalidParameter", "Invalid parameter: Message too long", broker.ClassRejected, "InvalidParameter", ""},
		{500, "InternalError", "no", broker.ClassUnknown, "InternalError", ""},
	} {
		p := publishing(t, &publisher{answer: func(url.Values) (int, string, string) { return c.status, c.code, c.message }})
		errs := p.sink(t).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})
		if e := broker.Classify(errs[0]); e.Class != c.class || e.Code != c.want || !strings.Contains(e.Error(), c.says) {
			t.Errorf("%s: %v (class %v, code %s), want %v %s and %q", c.code, e, e.Class, e.Code, c.class, c.want, c.says)
		}
	}
}

// TestTopicLooks: credentials that may only publish are enough, missing topics are
// named, and a topic whose messages go nowhere or travel in an envelope is advised on.
func TestTopicLooks(t *testing.T) {
	t.Parallel()
	code := "AuthorizationError"
	p := publishing(t, &publisher{answer: func(url.Values) (int, string, string) { return 403, code, "no" }})
	info := p.sink(t).Info()
	must(t, info.Ping(t.Context()))
	lacking, err := info.Probe(t.Context(), []string{"orders", "or.ders"})
	if err != nil || lacking[0] != nil || lacking[1] == nil {
		t.Errorf("probe: %v, %v", lacking, err)
	}
	if all, err := info.Advise(t.Context(), []string{"orders"}); err != nil || all != nil {
		t.Errorf("advice: %v, %v", all, err)
	}
	code = "NotFound"
	if lacking, err = info.Probe(t.Context(), []string{"orders"}); err != nil || lacking[0] == nil {
		t.Errorf("probe of a missing topic: %v, %v", lacking, err)
	}
	code = "InvalidClientTokenId"
	for what, err := range map[string]error{"ping": info.Ping(t.Context()), "probe": second(info.Probe(t.Context(), []string{"orders"}))} {
		if !isRefused(err) || !strings.Contains(err.Error(), "reach SNS") {
			t.Errorf("%s with wrong credentials: %v", what, err)
		}
	}

	addr, ctx := testserver.SharedMoto(t).Addr, t.Context()
	info = open(t, topicAddress(addr, testserver.MotoAccount, ""), nil).Info()
	q := &fanOut{&server{addr: addr, suffix: ".fifo"}, testserver.MotoAccount}
	raw, silent, wrapped := "raw"+rand.Text(), "silent"+rand.Text(), "wrapped"+rand.Text()
	must(t, q.create(ctx, raw))
	for _, topic := range []string{silent, wrapped} {
		must(t, q.server.create(ctx, topic))
		must(t, q.action(ctx, url.Values{"Action": {"CreateTopic"}, "Name": {topic + ".fifo"}, "Attributes.entry.1.key": {"FifoTopic"}, "Attributes.entry.1.value": {"true"}}))
	}
	must(t, q.action(ctx, url.Values{"Action": {"Subscribe"}, "TopicArn": {q.arn("sns", wrapped)}, "Protocol": {"sqs"}, "Endpoint": {q.arn("sqs", wrapped)}}))
	all, err := info.Advise(ctx, []string{raw, silent, wrapped})
	if err != nil || len(all) != 2 || all[0].Topic != silent || !strings.Contains(all[0].Fix, "aws sns subscribe") || all[1].Topic != wrapped || !strings.Contains(all[1].Fix, "RawMessageDelivery") {
		t.Errorf("advice: %+v, %v", all, err)
	}
}

// TestTopicAdviceWithoutDetails: a subscription that has just ended, or may not be read,
// hides nothing of the others.
func TestTopicAdviceWithoutDetails(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"NotFound", "AuthorizationError"} {
		member := `<member><Protocol>sqs</Protocol><SubscriptionArn>arn:aws:sns:us-east-1:123456789012:orders.fifo:%d</SubscriptionArn><Endpoint>arn:aws:sqs:us-east-1:123456789012:%s</Endpoint></member>`
		p := publishing(t, &publisher{list: fmt.Sprintf(member, 1, "gone.fifo") + fmt.Sprintf(member, 2, "plain"), answer: func(in url.Values) (int, string, string) {
			if in.Get("Action") == "GetSubscriptionAttributes" {
				return 403, code, "no"
			}
			return 0, "", ""
		}})
		all, err := p.sink(t).Info().Advise(t.Context(), []string{"orders"})
		if err != nil || len(all) != 1 || !strings.Contains(all[0].What, "queue plain of topic orders.fifo is a standard queue") {
			t.Errorf("%s: %+v, %v", code, all, err)
		}
	}
}

// TestTopicBatch: a batch has 256 KiB at most, as each of its messages.
func TestTopicBatch(t *testing.T) {
	t.Parallel()
	p := publishing(t, &publisher{})
	var msgs []postrider.Message
	for n := range 4 {
		msgs = append(msgs, message(n, fmt.Sprint(n), strings.Repeat("x", 100<<10)))
	}
	if errs := p.sink(t).Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	if len(p.calls) != 2 {
		t.Errorf("%d requests, want 2", len(p.calls))
	}
}

// TestTopicURL: a URL of SNS has an account, and nothing about receiving.
func TestTopicURL(t *testing.T) {
	t.Parallel()
	for raw, says := range map[string]string{
		"sns://us-east-1":                                   "add account=ID",
		"sns://us-east-1?account=1":                         "12 digits",
		"sns://us-east-1?account=123456789012&wait=2s":      "wait",
		"sns://us-east-1?account=123456789012&type=express": "type must be",
	} {
		if _, err := awsbroker.Open(raw, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", raw, err, says)
		}
	}
	if _, err := awsbroker.OpenSource("sns://us-east-1?account=123456789012", &awsbroker.SourceOptions{Queue: "q"}); err == nil || !strings.Contains(err.Error(), "sqs://") {
		t.Errorf("a source of SNS: %v", err)
	}
}
