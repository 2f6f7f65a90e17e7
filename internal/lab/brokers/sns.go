package brokers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// SNS describes FIFO topics, each with a FIFO queue of its name behind it. client is of
// the queues. The description has no consumers.
func SNS(client *sqs.Client, topics *Topics) *Broker {
	q := SQS(client)
	return &Broker{
		Name: "sns", Count: q.Count, Read: q.Read, Lease: q.Lease, Close: q.Close,
		Make: func(ctx context.Context, t Topic) error {
			if err := q.Make(ctx, t); err != nil {
				return err
			}
			return topics.Make(ctx, t.Name+".fifo")
		},
	}
}

// Topics are the topics of a server with the API of Amazon SNS. They speak its query
// protocol, without Amazon's client.
type Topics struct {
	Addr    string // host:port
	Account string
}

// Make makes a FIFO topic with the FIFO queue of its name behind it, which exists. The
// queue gets messages as they were published.
func (t *Topics) Make(ctx context.Context, name string) error {
	err := t.call(ctx, url.Values{
		"Action": {"CreateTopic"}, "Name": {name}, "Attributes.entry.1.key": {"FifoTopic"}, "Attributes.entry.1.value": {"true"},
	})
	if err != nil {
		return err
	}
	return t.call(ctx, url.Values{
		"Action": {"Subscribe"}, "TopicArn": {t.arn("sns", name)}, "Protocol": {"sqs"}, "Endpoint": {t.arn("sqs", name)},
		"Attributes.entry.1.key": {"RawMessageDelivery"}, "Attributes.entry.1.value": {"true"},
	})
}

// Publish publishes at most ten messages in one request. Their payloads are their
// deduplication ids.
func (t *Topics) Publish(ctx context.Context, name string, page []Message) error {
	in := url.Values{"Action": {"PublishBatch"}, "TopicArn": {t.arn("sns", name)}}
	for i, m := range page {
		entry := "PublishBatchRequestEntries.member." + strconv.Itoa(i+1) + "."
		in.Set(entry+"Id", strconv.Itoa(i))
		in.Set(entry+"Message", string(m.Payload))
		in.Set(entry+"MessageGroupId", m.Key)
		in.Set(entry+"MessageDeduplicationId", string(m.Payload))
	}
	return t.call(ctx, in)
}

func (t *Topics) arn(service, name string) string {
	return "arn:aws:" + service + ":us-east-1:" + t.Account + ":" + name
}

func (t *Topics) call(ctx context.Context, in url.Values) error {
	in.Set("Version", "2010-03-31")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.Addr+"/", strings.NewReader(in.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	// Some servers tell services apart by the scope of a signature, which they do not check.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || strings.Contains(string(body), "<SenderFault>")) {
		err = fmt.Errorf("brokers: sns: %s: %s: %s", in.Get("Action"), resp.Status, body)
	}
	return err
}
