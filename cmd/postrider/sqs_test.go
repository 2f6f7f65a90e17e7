package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// fifo is a server with queues that are asked by Amazon's client alone.
type fifo struct {
	client *sqs.Client
	url    string // for --broker
	remedy string // the command that creates what is missing, without its name
	topics string // the server's address if topics of SNS are before the queues; "": queues alone
}

func simpleQueues(addr string) *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + addr),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
}

func (q *fifo) create(t *testing.T, name string) {
	t.Helper()
	name += ".fifo"
	if _, err := q.client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"FifoQueue": "true"}}); err != nil {
		t.Fatal(err)
	}
	if q.topics == "" {
		return
	}
	arn := func(service string) string {
		return "arn:aws:" + service + ":us-east-1:" + testserver.MotoAccount + ":" + name
	}
	for _, in := range []url.Values{
		{"Action": {"CreateTopic"}, "Name": {name}, "Attributes.entry.1.key": {"FifoTopic"}, "Attributes.entry.1.value": {"true"}},
		{
			"Action": {"Subscribe"}, "TopicArn": {arn("sns")}, "Protocol": {"sqs"}, "Endpoint": {arn("sqs")},
			"Attributes.entry.1.key": {"RawMessageDelivery"}, "Attributes.entry.1.value": {"true"},
		},
	} {
		in.Set("Version", "2010-03-31")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+q.topics+"/", strings.NewReader(in.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=0")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", in.Get("Action"), resp.Status)
		}
	}
}

// take receives and deletes the next messages of a queue; it does not wait for any.
func (q *fifo) take(t *testing.T, name string) []types.Message {
	t.Helper()
	at, err := q.client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(name + ".fifo")})
	if err != nil {
		t.Fatal(err)
	}
	out, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: at.QueueUrl, MaxNumberOfMessages: 10, VisibilityTimeout: 600, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil {
		t.Fatal(err)
	}
	var entries []types.DeleteMessageBatchRequestEntry
	for i := range out.Messages {
		entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: out.Messages[i].ReceiptHandle})
	}
	if len(entries) > 0 {
		if _, err := q.client.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: at.QueueUrl, Entries: entries}); err != nil {
			t.Fatal(err)
		}
	}
	return out.Messages
}

// TestRelayToSQS: the program relays from PostgreSQL to FIFO queues, and to FIFO topics
// with queues behind them: every message once and each key in order. A missing queue has
// its remedy in the doctor's answer and in the log, and gets its messages when it is there.
//
// Promises: L, O
func TestRelayToSQS(t *testing.T) {
	t.Run("sqs", func(t *testing.T) {
		addr := testserver.SharedElasticMQ(t).Addr
		relayToFIFO(t, &fifo{
			client: simpleQueues(addr), url: "sqs://key:secret@us-east-1?endpoint=http://" + addr, remedy: "aws sqs create-queue --queue-name ",
		})
	})
	t.Run("sns", func(t *testing.T) {
		addr := testserver.SharedMoto(t).Addr
		relayToFIFO(t, &fifo{
			client: simpleQueues(addr), topics: addr, remedy: "aws sns create-topic --name ",
			url: "sns://key:secret@us-east-1?window=2&account=" + testserver.MotoAccount + "&endpoint=http://" + addr,
		})
	})
}

func relayToFIFO(t *testing.T, server *fifo) {
	t.Helper()
	const keys, each = 20, 6
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	orders, later := "orders"+rand.Text(), "later"+rand.Text()
	server.create(t, orders)
	var in strings.Builder
	for n := range each {
		for k := range keys {
			fmt.Fprintf(&in, `{"topic":%q,"key":"k%d","type":"order.placed","payload":%d}`+"\n", orders, k, n)
		}
	}
	fmt.Fprintf(&in, `{"topic":%q,"key":"k","type":"order.placed","payload":"late"}`+"\n", later)
	mustCLI(t, in.String(), "enqueue", "--store", store)
	remedy := server.remedy + later + ".fifo"
	if got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", store, "--broker", server.url); got.code != exit.Findings || !strings.Contains(got.out, remedy) {
		t.Errorf("the doctor answers %d: %s%s", got.code, got.out, got.err)
	}
	if out := mustCLI(t, in.String(), "check", "--samples", "-", "--broker", server.url); !strings.Contains(out, orders+".fifo") {
		t.Errorf("check previews no %s.fifo:\n%s", orders, out)
	}

	p := launchRelay(t, store, server.url)
	next, total := make(map[string]int), 0
	until(t, "all messages arrive", p, func() bool {
		for _, m := range server.take(t, orders) {
			key := m.Attributes["MessageGroupId"]
			if want := fmt.Sprint(next[key]); aws.ToString(m.Body) != want || aws.ToString(m.MessageAttributes["postrider-type"].StringValue) != "order.placed" {
				t.Fatalf("%s: %q, want %s", key, aws.ToString(m.Body), want)
			}
			next[key]++
			total++
		}
		return total == keys*each
	})
	if len(next) != keys {
		t.Errorf("keys %v", next)
	}
	until(t, "the missing queue is logged", p, func() bool { return p.said.count(remedy) > 0 })
	until(t, "status names the missing queue", p, func() bool { // with the next report of the relay
		return strings.Contains(mustCLI(t, "", "status", "--lanes", "--store", store), later+".fifo")
	})
	server.create(t, later)
	until(t, "the message of the missing queue arrives", p, func() bool {
		msgs := server.take(t, later)
		return len(msgs) == 1 && aws.ToString(msgs[0].Body) == `"late"`
	})
	if more := server.take(t, orders); len(more) > 0 {
		t.Errorf("%d messages twice", len(more))
	}
	p.stop()
}

// TestDeniedBySQS: the action that the credentials lack is in the doctor's answer and in
// the relay's log.
func TestDeniedBySQS(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		switch strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.") {
		case "GetQueueUrl":
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"__type":"com.amazonaws.sqs#AccessDeniedException","message":"no"}`)
		}
	}))
	t.Cleanup(s.Close)
	store, broker := fileOutbox(t), "sqs://key:secret@us-east-1?endpoint="+s.URL
	mustCLI(t, oneMessage, "enqueue", "--store", store)
	if got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", store, "--broker", broker); got.code != exit.OK && got.code != exit.Findings {
		t.Errorf("the doctor answers %d: %s%s", got.code, got.out, got.err)
	}
	p := launchRelay(t, store, broker)
	until(t, "the relay names the action", p, func() bool { return p.said.count("allow sqs:SendMessage on queue orders.fifo") > 0 })
	p.stop()
}
