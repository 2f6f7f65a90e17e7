package awsbroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// outages requires an outage of a destination with that code and remedy from all
// messages.
func outages(t *testing.T, errs []error, code, destination, remedy string) {
	t.Helper()
	if errs == nil {
		t.Errorf("the messages were accepted, want %s", code)
	}
	for i, err := range errs {
		if e := broker.Classify(err); e == nil || e.Class != broker.ClassOutage || e.Code != code || e.Destination != destination || !strings.Contains(e.Error(), remedy) {
			t.Errorf("message %d: %v, want an outage %s of %s with %q", i, err, code, destination, remedy)
		}
	}
}

// told is what a sink answers for a batch, and asked what it finds about a topic. An answer
// that is lost, as moto's connections lose a few, says nothing, and they ask again.
func told(t *testing.T, sink *awsbroker.Sink, b broker.Batch) (errs []error) {
	t.Helper()
	for range 5 {
		errs = sink.Deliver(t.Context(), b)
		if !slices.ContainsFunc(errs, func(err error) bool { return err != nil && broker.Classify(err).Code == "" }) {
			break
		}
	}
	return errs
}

func asked(t *testing.T, sink *awsbroker.Sink, topic string) error {
	t.Helper()
	var err error
	for range 5 {
		var lacking []error
		if lacking, err = sink.Probe(t.Context(), []string{topic}); err == nil {
			return lacking[0]
		}
	}
	t.Error(err)
	return err
}

// TestTopicBeforeItsSubscription: a topic that was missing gets no message before it has a
// subscription, also when it is deleted and made again, and when it is named by its ARN.
// A FIFO topic drops a message that it has accepted before: what arrives was not accepted
// earlier.
//
// Promises: L, O
func TestTopicBeforeItsSubscription(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct{ addr, account string }{
		"moto":   {testserver.SharedMoto(t).Addr, testserver.MotoAccount},
		"fauxqs": {testserver.SharedFauxqs(t).Addr, testserver.FauxqsAccount},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			q := &fanOut{&server{addr: at.addr, suffix: ".fifo", prefix: "shop-", logs: make(map[string][]postrider.Message)}, at.account}
			address := topicAddress(at.addr, at.account, "&prefix=shop-")
			sink, probed := open(t, address, nil), open(t, address, nil)
			topic := "late" + rand.Text()
			must(t, q.server.create(ctx, topic))
			var sent []string
			for round, named := range []string{topic, topic, q.arn("sns", topic)} {
				var msgs []postrider.Message
				for n := range 4 {
					m := message(10*round+n, fmt.Sprint("k", n%2), fmt.Sprint(round, "/", n))
					m.Topic = named
					msgs, sent = append(msgs, m), append(sent, string(m.Payload))
				}
				destination := q.name(topic)
				if named != topic {
					destination = named
				}
				b := broker.Batch{Messages: msgs}
				outages(t, told(t, sink, b), "TOPIC_MISSING", destination, "waits for the topic's first subscription")
				if asked(t, probed, named) == nil {
					t.Error("the probe does not report a missing topic")
				}
				must(t, q.action(ctx, url.Values{"Action": {"CreateTopic"}, "Name": {q.name(topic)}, "Attributes.entry.1.key": {"FifoTopic"}, "Attributes.entry.1.value": {"true"}}))
				remedy := "aws sns subscribe --region us-east-1 --topic-arn " + q.arn("sns", topic)
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() { outages(t, told(t, sink, b), "NO_SUBSCRIPTION", destination, remedy) })
				}
				wg.Wait()
				outages(t, told(t, probed, b), "NO_SUBSCRIPTION", destination, remedy)
				if err := asked(t, sink, named); err == nil || !strings.Contains(err.Error(), remedy) {
					t.Errorf("probe: %v", err)
				}
				other := message(100+round, "x", "of a sink that has not seen the topic missing")
				other.Topic = named
				if errs := told(t, open(t, address, nil), broker.Batch{Messages: []postrider.Message{other}}); errs != nil {
					t.Errorf("another sink: %v", errs)
				}
				must(t, q.subscribe(ctx, topic))
				if errs := told(t, sink, b); errs != nil {
					t.Fatalf("with a subscription: %v", errs)
				}
				if err := asked(t, sink, named); err != nil {
					t.Errorf("probe with a subscription: %v", err)
				}
				must(t, q.action(ctx, url.Values{"Action": {"DeleteTopic"}, "TopicArn": {q.arn("sns", topic)}}))
			}
			log, err := q.log(ctx, topic)
			must(t, err)
			var got []string
			for _, m := range log {
				got = append(got, string(m.Payload))
			}
			slices.Sort(got)
			if !slices.Equal(got, sent) {
				t.Errorf("arrived %q, want %q", got, sent)
			}
		})
	}
}

// late is a service whose topic was missing for the first request, with what it says when
// it is asked for subscriptions.
func late(t *testing.T, list func(in url.Values) (status int, answer string)) (sink *awsbroker.Sink, actions func() []string) {
	t.Helper()
	var (
		mu  sync.Mutex
		all []string
	)
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		mu.Lock()
		defer mu.Unlock()
		action := r.PostForm.Get("Action")
		all = append(all, action)
		switch {
		case len(all) == 1:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, refused("NotFound"))
		case action == "PublishBatch":
			fmt.Fprint(w, `<PublishBatchResponse><PublishBatchResult><Successful><member><Id>0</Id><MessageId>m</MessageId></member></Successful></PublishBatchResult></PublishBatchResponse>`)
		default:
			status, answer := list(r.PostForm)
			w.WriteHeader(status)
			fmt.Fprint(w, answer)
		}
	})
	sink = open(t, "sns://key:secret@us-east-1?account=123456789012&endpoint="+s.URL, &awsbroker.SinkOptions{Timeout: 5 * time.Second})
	return sink, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func refused(code string) string {
	return `<ErrorResponse><Error><Type>Sender</Type><Code>` + code + `</Code><Message>no</Message></Error></ErrorResponse>`
}

func subscriptions(next string, arns ...string) string {
	var b strings.Builder
	for _, arn := range arns {
		fmt.Fprintf(&b, `<member><Protocol>sqs</Protocol><SubscriptionArn>%s</SubscriptionArn><Endpoint>e</Endpoint></member>`, arn)
	}
	return `<ListSubscriptionsByTopicResponse><ListSubscriptionsByTopicResult><Subscriptions>` + b.String() + `</Subscriptions><NextToken>` + next +
		`</NextToken></ListSubscriptionsByTopicResult></ListSubscriptionsByTopicResponse>`
}

// TestSubscriptionsOfATopic: what each answer about the subscriptions of a topic that was
// missing means for its messages, and which requests they cost.
//
// Promises: L
func TestSubscriptionsOfATopic(t *testing.T) {
	t.Parallel()
	const confirmed = "arn:aws:sns:us-east-1:123456789012:orders.fifo:1"
	answers := func(status int, answer string) func(url.Values) (int, string) {
		return func(url.Values) (int, string) { return status, answer }
	}
	for name, c := range map[string]struct {
		list  func(url.Values) (int, string)
		code  string // of the outage; "": the message is published
		class broker.Class
		asked int // for pages, per message
	}{
		"confirmed":           {answers(200, subscriptions("", "PendingConfirmation", confirmed)), "", 0, 1},
		"none":                {answers(200, subscriptions("")), "NO_SUBSCRIPTION", broker.ClassOutage, 1},
		"pending and deleted": {answers(200, subscriptions("", "PendingConfirmation", "Deleted")), "NO_SUBSCRIPTION", broker.ClassOutage, 1},
		"on the second page": {func(in url.Values) (int, string) {
			if in.Get("NextToken") == "more" {
				return 200, subscriptions("", confirmed)
			}
			return 200, subscriptions("more", "PendingConfirmation")
		}, "", 0, 2},
		"denied":            {answers(403, refused("AuthorizationError")), "", 0, 1},
		"missing still":     {answers(404, refused("NotFound")), "TOPIC_MISSING", broker.ClassOutage, 1},
		"throttled":         {answers(400, refused("Throttled")), "THROTTLED", broker.ClassThrottled, 1},
		"wrong credentials": {answers(403, refused("InvalidClientTokenId")), "CREDENTIALS", broker.ClassOutage, 1},
		"not XML":           {answers(200, "<"), "", broker.ClassOutage, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink, actions := late(t, c.list)
			b := broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}}
			outages(t, sink.Deliver(t.Context(), b), "TOPIC_MISSING", "orders.fifo", "sns:ListSubscriptionsByTopic")
			var got []*broker.Error
			for range 2 {
				if errs := sink.Deliver(t.Context(), b); errs != nil {
					got = append(got, broker.Classify(errs[0]))
				}
			}
			ask := slices.Repeat([]string{"ListSubscriptionsByTopic"}, c.asked)
			want := slices.Concat([]string{"PublishBatch"}, ask, ask)
			if c.class == 0 { // asked until the answer is good, not for every message
				want = slices.Concat([]string{"PublishBatch"}, ask, []string{"PublishBatch", "PublishBatch"})
			}
			if !slices.Equal(actions(), want) {
				t.Errorf("requests %v, want %v", actions(), want)
			}
			if (c.class == 0) != (got == nil) {
				t.Errorf("answers %v", got)
			}
			for _, e := range got {
				if e.Class != c.class || e.Code != c.code {
					t.Errorf("%v: class %v, code %q, want %v %q", e, e.Class, e.Code, c.class, c.code)
				}
			}
		})
	}
}

// TestQuestionCutOff: a call that ends while the service is asked for subscriptions
// publishes nothing, and tells nothing about the service.
func TestQuestionCutOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hold := make(chan struct{})
	sink, actions := late(t, func(url.Values) (int, string) { cancel(); <-hold; return 200, subscriptions("") })
	b := broker.Batch{Messages: []postrider.Message{message(1, "a", "a1"), message(2, "a", "a2"), message(3, "b", "b1")}}
	outages(t, sink.Deliver(ctx, b), "TOPIC_MISSING", "orders.fifo", "")
	errs := sink.Deliver(ctx, b)
	for i, err := range errs {
		if e := broker.Classify(err); e.Class != broker.ClassUnknown {
			t.Errorf("message %d: class %v: %v", i, e.Class, e)
		}
	}
	if errs == nil {
		t.Error("the messages were accepted")
	}
	close(hold)
	if all := actions(); slices.Contains(all[1:], "PublishBatch") {
		t.Errorf("requests %v", all)
	}
}
