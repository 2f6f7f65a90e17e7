package awsbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

const (
	mostName   = 80 // bytes of a queue's name, suffix and all
	fifoSuffix = ".fifo"
)

// queues names queues and knows their URLs.
type queues struct {
	client   *sqs.Client
	prefix   string
	standard bool
	account  string

	mu   sync.Mutex
	urls map[string]string
}

// name is the queue of a topic: its name, or its ARN if that is the topic. A FIFO
// queue's name ends in .fifo, which is added to names, not to ARNs.
func (q *queues) name(topic string) string {
	if isARN(topic) {
		return topic
	}
	name := q.prefix + topic
	if !q.standard && !strings.HasSuffix(name, fifoSuffix) {
		name += fifoSuffix
	}
	return name
}

// topicOf is the topic of a message that does not name it.
func (q *queues) topicOf(name string) string {
	name = plainName(name)
	if !q.standard {
		name = strings.TrimSuffix(name, fifoSuffix)
	}
	return strings.TrimPrefix(name, q.prefix)
}

func isARN(queue string) bool { return strings.HasPrefix(queue, "arn:") }

// plainName is the name of a queue that is given by name or ARN.
func plainName(queue string) string {
	if isARN(queue) {
		return queue[strings.LastIndexByte(queue, ':')+1:]
	}
	return queue
}

var (
	errName = errors.New("a queue's name has letters, digits, - and _ only: use a route with such a topic")
	errARN  = errors.New("a queue's ARN must be arn:PARTITION:sqs:REGION:ACCOUNT:NAME")
)

// problem says what is wrong with a queue's name or ARN.
func (q *queues) problem(name string) error {
	if isARN(name) {
		a, err := arn.Parse(name)
		fifo := strings.HasSuffix(a.Resource, fifoSuffix)
		switch {
		case err != nil || a.Service != "sqs" || a.Region == "" || a.AccountID == "":
			return errARN
		case q.client != nil && a.Region != q.client.Options().Region:
			return fmt.Errorf("the queue's ARN is of region %s, the client's is %s: use a URL of that region", a.Region, q.client.Options().Region)
		case fifo && q.standard:
			return errors.New("the ARN names a FIFO queue: use type=fifo")
		case !fifo && !q.standard:
			return errors.New("the ARN names a standard queue: use type=standard")
		}
		name = a.Resource
	}
	if len(name) > mostName {
		return fmt.Errorf("the queue's name has %d bytes with prefix and .fifo, SQS allows %d", len(name), mostName)
	}
	plain := strings.TrimSuffix(name, fifoSuffix)
	if plain == "" {
		return errName
	}
	for i := range len(plain) {
		c := plain[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return errName
		}
	}
	return nil
}

// url returns the URL of a queue, which it asks for once.
func (q *queues) url(ctx context.Context, name string) (string, error) {
	q.mu.Lock()
	known := q.urls[name]
	q.mu.Unlock()
	if known != "" {
		return known, nil
	}
	in := &sqs.GetQueueUrlInput{QueueName: aws.String(plainName(name))}
	if q.account != "" {
		in.QueueOwnerAWSAccountId = aws.String(q.account)
	}
	if a, err := arn.Parse(name); err == nil {
		in.QueueOwnerAWSAccountId = aws.String(a.AccountID)
	}
	out, err := q.client.GetQueueUrl(ctx, in, once)
	if err != nil {
		return "", refusal(err, "sqs:GetQueueUrl", name, false)
	}
	found := aws.ToString(out.QueueUrl)
	q.mu.Lock()
	if q.urls == nil {
		q.urls = make(map[string]string)
	}
	q.urls[name] = found
	q.mu.Unlock()
	return found, nil
}

// forget drops the URL of a queue that is gone: it is asked for again.
func (q *queues) forget(name string) {
	q.mu.Lock()
	delete(q.urls, name)
	q.mu.Unlock()
}

// once turns the SDK's retries off: the relay and the consumer retry, and know
// what may be sent again. It marks the errors of the credentials as such.
func once(o *sqs.Options) {
	o.Retryer = aws.NopRetryer{}
	if o.Credentials != nil {
		o.Credentials = &credentials{o.Credentials}
	}
}
