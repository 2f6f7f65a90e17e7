package awsbroker_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
)

// polled is message n of a group as the SDK hands it over.
func polled(n int, group string) types.Message {
	return types.Message{
		MessageId: aws.String("m" + strconv.Itoa(n)), ReceiptHandle: aws.String("h" + strconv.Itoa(n)), Body: aws.String(strconv.Itoa(n)),
		Attributes: map[string]string{"MessageGroupId": group, "SequenceNumber": strconv.Itoa(100 + n), "ApproximateReceiveCount": "1"},
	}
}

// TestCloseDuringAPoll: the messages of a poll that Close has cut off are asked for
// under the same attempt id, and given back at once.
func TestCloseDuringAPoll(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	s := fakeService(t, func(c call) reply {
		if c.action == "ReceiveMessage" && c.n == 1 {
			close(asked)
			<-c.left
			return reply{status: -1}
		}
		return reply{}
	})
	s.stored = []map[string]any{stored(0, "g", "b", nil), stored(1, "g", "b", nil)}
	from := source(t, s.url(), "orders")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := from.Receive(ctx, 1)
		ended <- err
	}()
	<-asked
	from.Close()
	if err := <-ended; err == nil || ctx.Err() != nil {
		t.Errorf("Receive on a closed source: %v", err)
	}
	polls, backs := s.of("ReceiveMessage"), s.of("ChangeMessageVisibilityBatch")
	if len(polls) != 2 || polls[0].attempt == "" || polls[0].attempt != polls[1].attempt {
		t.Fatalf("polls %+v", polls)
	}
	var back []string
	for _, c := range backs {
		back = append(back, c.entries...)
		if slices.Max(c.hidden) != 0 {
			t.Errorf("visibility %v", c.hidden)
		}
	}
	if !slices.Equal(back, []string{"h1", "h0"}) { // the later ones first, while the group is locked
		t.Errorf("given back %v", back)
	}
}

// TestALongPollHidesFromItsBeginning: the service may have hidden a message when the poll
// began. Before such a message is handed out its time is extended; one that is no
// longer ours is dropped.
func TestALongPollHidesFromItsBeginning(t *testing.T) {
	t.Parallel()
	s := fakeService(t, func(call) reply {
		return reply{fail: map[string]failure{"h2": {"ReceiptHandleIsInvalid", true}}}
	})
	from := source(t, s.url(), "orders") // 30 s
	awsbroker.Polled(from, time.Now().Add(-25*time.Second), polled(1, "a"))
	awsbroker.Polled(from, time.Now().Add(-40*time.Second), polled(2, "b"), polled(3, "c"))
	awsbroker.Polled(from, time.Now(), polled(4, "d"))
	var got []string
	for _, d := range receive(t, from, 10) {
		got = append(got, string(d.Message.Payload))
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"1", "3", "4"}) {
		t.Errorf("received %v", got)
	}
	var extended []string
	for _, c := range s.of("ChangeMessageVisibilityBatch") {
		extended = append(extended, c.entries...)
	}
	slices.Sort(extended)
	if !slices.Equal(extended, []string{"h1", "h2", "h3"}) {
		t.Errorf("extended %v", extended)
	}
}

// TestLostWithItsPoll: a message that is lost takes the later messages of the same poll with it.
// Messages of a later poll are returned.
//
// Promises: O
func TestLostWithItsPoll(t *testing.T) {
	t.Parallel()
	for _, acks := range []bool{false, true} {
		s := fakeService(t, func(call) reply {
			return reply{fail: map[string]failure{"h1": {"ReceiptHandleIsInvalid", true}}}
		})
		from := source(t, s.url(), "orders")
		awsbroker.Polled(from, time.Now(), polled(1, "g"), polled(2, "g"))
		first := receive(t, from, 10)
		awsbroker.Polled(from, time.Now(), polled(3, "g"))
		if acks {
			must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: first[0], Ack: true}}))
		} else {
			must(t, from.Extend(t.Context(), first))
		}
		if next := receive(t, from, 10); len(first) != 1 || len(next) != 1 || string(next[0].Message.Payload) != "3" {
			t.Errorf("received %v, then %v", first, next)
		}
	}
}

// TestARN: a queue's ARN names the queue, for sinks and for sources: nothing is put
// before or behind its name, and its account is asked.
func TestARN(t *testing.T) {
	t.Parallel()
	const queue = "arn:aws:sqs:us-east-1:123456789012:orders.fifo"
	s := fakeService(t, func(call) reply { return reply{} })
	sink := open(t, s.url()+"&prefix=shop-", nil)
	m := message(1, "a", "a1")
	m.Topic = queue
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		t.Fatal(errs)
	}
	s.stored = []map[string]any{stored(0, "g", "b", nil)}
	if d := receive(t, source(t, s.url()+"&prefix=shop-", queue), 1)[0]; d.Message.Topic != "orders" {
		t.Errorf("topic %q", d.Message.Topic)
	}
	for _, c := range s.of("GetQueueUrl") {
		if c.queue != "orders.fifo" || c.owner != "123456789012" {
			t.Errorf("asked for %q of %q", c.queue, c.owner)
		}
	}
	sent := s.of("SendMessageBatch")
	if len(sent) != 1 || sent[0].attributes[0]["postrider-topic"]["StringValue"] != queue {
		t.Errorf("sent %+v", sent)
	}
	for topic, says := range map[string]string{
		"arn:aws:sqs:eu-west-1:123456789012:orders.fifo": "region eu-west-1",
		"arn:aws:sqs:us-east-1:123456789012:orders":      "type=standard",
		"arn:aws:sns:us-east-1:123456789012:orders.fifo": "arn:PARTITION:sqs",
		"arn:aws:sqs": "arn:PARTITION:sqs",
		"arn:aws:sqs:us-east-1:123456789012:or ders.fifo": "letters, digits",
	} {
		m.Topic = topic
		class := broker.ClassRejected
		if strings.Contains(says, "region") || strings.Contains(says, "type") { // another URL sends it
			class = broker.ClassOutage
		}
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if e := broker.Classify(errs[0]); e.Class != class || e.Code != "QUEUE_NAME" || !strings.Contains(e.Error(), says) {
			t.Errorf("%s: %v", topic, e)
		}
		asked := len(s.of("GetQueueUrl"))
		if all, err := sink.Info().Advise(t.Context(), []string{topic}); err != nil || len(all) > 0 || len(s.of("GetQueueUrl")) != asked {
			t.Errorf("%s: advice on another queue: %v, %v", topic, all, err)
		}
	}
}

// TestUnreachable: the error of a service that cannot be reached names the address and
// the reason, and nothing of the client's layers.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"sqs://key:secret@us-east-1?endpoint=http://127.0.0.1:1":        "cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused",
		"sqs://key:secret@us-east-1?endpoint=http://postrider.invalid":  "check the region or the endpoint",
		"sns://k:s@us-east-1?account=123456789012&endpoint=http://[::]": "cannot be reached: dial tcp",
	} {
		m := message(1, "a", "a1")
		errs := open(t, url, nil).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if e := broker.Classify(errs[0]); e.Class != broker.ClassOutage || !strings.Contains(e.Error(), says) || strings.Contains(e.Error(), "operation error") {
			t.Errorf("%s: %v", url, e)
		}
	}
}

// TestLostAnswers: the error of a request without an answer, or with an unreadable one,
// names the reason, and nothing of the client's layers.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		if action(r) == "GetQueueUrl" {
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
			return
		}
		panic(http.ErrAbortHandler)
	})
	for _, url := range []string{"sqs://key:secret@us-east-1?endpoint=" + s.URL, "sns://key:secret@us-east-1?account=123456789012&endpoint=" + s.URL} {
		sink := open(t, url, nil)
		e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})[0])
		if e.Class != broker.ClassUnknown || !strings.HasSuffix(e.Error(), "no answer: EOF") {
			t.Errorf("%s: %v", url[:3], e)
		}
		if err := sink.Info().Ping(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "no answer: EOF") {
			t.Errorf("%s: ping: %v", url[:3], err)
		}
	}
}

// TestAnswersOfOthers: a refusal by a proxy or another server is an outage that names the
// status, the endpoint and the action. It is no message's fault and stored nothing.
func TestAnswersOfOthers(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		if action(r) == "GetQueueUrl" {
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, "<html>no</html>")
	})
	url := "sqs://key:secret@us-east-1?endpoint=" + s.URL
	for code, want := range map[int]struct {
		class broker.Class
		says  string
	}{
		401: {broker.ClassOutage, "HTTP 401 without an error code of the service: check the endpoint and the proxies before it, and whether the credentials allow sqs:SendMessage"},
		403: {broker.ClassOutage, "HTTP 403"},
		404: {broker.ClassOutage, "HTTP 404"},
		405: {broker.ClassOutage, "HTTP 405"},
		407: {broker.ClassOutage, "set them in HTTPS_PROXY"},
		429: {broker.ClassThrottled, "HTTP 429"},
		502: {broker.ClassUnknown, ""},
		200: {broker.ClassUnknown, ""},
	} {
		status.Store(int32(code))
		sink := open(t, url, nil)
		e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})[0])
		if e.Class != want.class || !strings.Contains(e.Error(), want.says) {
			t.Errorf("%d: class %v: %v", code, e.Class, e)
		}
		if err := sink.Info().Ping(t.Context()); err == nil || !strings.Contains(err.Error(), want.says) && code != 401 {
			t.Errorf("%d: ping: %v", code, err)
		}
	}
}

// TestQuiet: the SDK writes nothing to standard error, where the program's log is, when a
// connection breaks under an answer.
func TestQuiet(t *testing.T) { // not parallel: standard error is the process's
	s := handled(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"QueueUrl":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	written, err := os.CreateTemp(t.TempDir(), "stderr")
	must(t, err)
	before := os.Stderr
	os.Stderr = written
	sink := open(t, "sqs://key:secret@us-east-1?endpoint="+s.URL, nil)
	os.Stderr = before
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}}); errs == nil {
		t.Error("accepted by half an answer")
	}
	if text, err := os.ReadFile(written.Name()); err != nil || len(text) > 0 {
		t.Errorf("the SDK wrote %q, %v", text, err)
	}
}
