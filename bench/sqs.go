package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker/awsbroker"
)

// sqsRequests are under way at once: as many as the sink has. With 16 or 64 the loop is
// no faster.
const sqsRequests = 32

// sqsOpen returns a client and the queue's URL.
func sqsOpen(ctx context.Context, url, topic string) (*sqs.Client, *string, error) {
	t, err := awsbroker.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	conf, err := t.Config(ctx)
	if err != nil {
		return nil, nil, err
	}
	conf.HTTPClient = awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) { tr.MaxIdleConnsPerHost = 2 * sqsRequests })
	client := sqs.NewFromConfig(conf)
	out, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(topic + ".fifo")})
	if err != nil {
		return nil, nil, err
	}
	return client, out.QueueUrl, nil
}

// sqsProduce sends batches of ten side by side, as the sink does.
func sqsProduce(ctx context.Context, url, topic string, n int) error {
	const page = 10
	client, queue, err := sqsOpen(ctx, url, topic)
	if err != nil {
		return err
	}
	var (
		wg   sync.WaitGroup
		errs = make([]error, sqsRequests)
	)
	for w := range sqsRequests {
		wg.Go(func() {
			for from := w * page; from < n && errs[w] == nil; from += sqsRequests * page {
				errs[w] = sqsSend(ctx, client, queue, from, min(from+page, n))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sqsSend sends the records [from, to) in one request.
func sqsSend(ctx context.Context, client *sqs.Client, queue *string, from, to int) error {
	in := &sqs.SendMessageBatchInput{QueueUrl: queue}
	for i := from; i < to; i++ {
		in.Entries = append(in.Entries, sqsRecord(i))
	}
	out, err := client.SendMessageBatch(ctx, in)
	if err == nil && len(out.Failed) > 0 {
		err = fmt.Errorf("send: %s", aws.ToString(out.Failed[0].Message))
	}
	return err
}

// sqsRecord returns the relay's record of message i.
func sqsRecord(i int) types.SendMessageBatchRequestEntry {
	text := func(s string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
	}
	id := string(appendID(nil, i))
	return types.SendMessageBatchRequestEntry{
		Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(appendPayload(make([]byte, 0, 256), i))),
		MessageGroupId: aws.String(string(appendKey(nil, i))), MessageDeduplicationId: aws.String("main/bench.fifo/" + id),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"postrider-id": text(id), "postrider-type": text("bench.event"), "postrider-time": text("2026-01-01T00:00:00.000000Z"),
		},
	}
}

// sqsPublisher sends each record at once.
func sqsPublisher(ctx context.Context, url, topic string) (func(int), func(), error) {
	client, queue, err := sqsOpen(ctx, url, topic)
	if err != nil {
		return nil, nil, err
	}
	publish, end := side(sqsRequests, func(i int) { _ = sqsSend(ctx, client, queue, i, i+1) })
	return publish, end, nil
}

// side calls do for each number that publish is given, from so many goroutines.
func side(workers int, do func(i int)) (publish func(int), end func()) {
	work := make(chan int, 1<<16)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	return func(i int) { work <- i }, func() { close(work); wg.Wait() }
}
