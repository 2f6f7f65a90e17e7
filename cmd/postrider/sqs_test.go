package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
)

// fifo is a server with FIFO queues.
type fifo struct {
	client *sqs.Client
	topics *brokers.Topics // of SNS, before the queues; nil: queues alone
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
	if q.topics == nil {
		return
	}
	if err := q.topics.Make(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// receive receives and deletes the next messages of a queue; it does not wait for any.
func (q *fifo) receive(t *testing.T, name string) (all []arrival) {
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
		m := &out.Messages[i]
		all = append(all, arrival{m.Attributes["MessageGroupId"], aws.ToString(m.Body), aws.ToString(m.MessageAttributes["postrider-type"].StringValue)})
		entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
	}
	if len(entries) > 0 {
		if _, err := q.client.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: at.QueueUrl, Entries: entries}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestRelayToSQS: the program relays from PostgreSQL to FIFO queues, and to FIFO topics
// with queues behind them: see relayToCloud.
//
// Promises: L, O
func TestRelayToSQS(t *testing.T) {
	t.Run("sqs", func(t *testing.T) {
		addr := testserver.SharedElasticMQ(t).Addr
		q := &fifo{client: simpleQueues(addr)}
		relayToCloud(t, &cloud{
			create: q.create, receive: q.receive, suffix: ".fifo",
			url: "sqs://key:secret@us-east-1?endpoint=http://" + addr, remedy: "aws sqs create-queue --queue-name ",
		})
	})
	t.Run("sns", func(t *testing.T) {
		addr := testserver.SharedMoto(t).Addr
		q := &fifo{client: simpleQueues(addr), topics: &brokers.Topics{Addr: addr, Account: testserver.MotoAccount}}
		relayToCloud(t, &cloud{
			create: q.create, receive: q.receive, suffix: ".fifo", remedy: "aws sns create-topic --name ",
			url: "sns://key:secret@us-east-1?window=2&account=" + testserver.MotoAccount + "&endpoint=http://" + addr,
		})
	})
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
