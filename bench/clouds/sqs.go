package clouds

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker/awsbroker"
)

// SQS returns a client of a FIFO queue that sends batches of ten.
func SQS(ctx context.Context, url, topic string, record Record) (*Client, error) {
	t, err := awsbroker.ParseURL(url)
	if err != nil {
		return nil, err
	}
	conf, err := t.Config(ctx)
	if err != nil {
		return nil, err
	}
	conf.HTTPClient = awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) { tr.MaxIdleConnsPerHost = 64 })
	client := sqs.NewFromConfig(conf)
	found, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(topic + ".fifo")})
	if err != nil {
		return nil, err
	}
	send := func(ctx context.Context, from, to int) error {
		in := &sqs.SendMessageBatchInput{QueueUrl: found.QueueUrl}
		for i := from; i < to; i++ {
			in.Entries = append(in.Entries, sqsEntry(i, record))
		}
		out, err := client.SendMessageBatch(ctx, in)
		if err == nil && len(out.Failed) > 0 {
			err = fmt.Errorf("send: %s", aws.ToString(out.Failed[0].Message))
		}
		return err
	}
	return &Client{requests: 32, batch: 10, send: send, close: func() {}}, nil
}

func sqsEntry(i int, record Record) types.SendMessageBatchRequestEntry {
	text := func(s string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
	}
	id, key, payload := record(i)
	return types.SendMessageBatchRequestEntry{
		Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(payload)), MessageGroupId: &key,
		MessageDeduplicationId: aws.String("main/bench.fifo/" + id),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"postrider-id": text(id), "postrider-type": text(kind), "postrider-time": text(when),
		},
	}
}
