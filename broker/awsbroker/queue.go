package awsbroker

import (
	"context"
	"crypto/md5" //nolint:gosec // the service's choice
	"encoding/hex"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
)

// queues names queues and knows their URLs.
type queues struct {
	naming
	client  *sqs.Client
	signed  aws.CredentialsProvider
	account string

	mu   sync.Mutex
	urls map[string]string
}

func newQueues(client *sqs.Client, prefix, account string, standard bool) *queues {
	return &queues{
		naming: naming{kind: "queue", service: "sqs", region: client.Options().Region, most: 80, prefix: prefix, standard: standard},
		client: client, signed: client.Options().Credentials, account: account,
	}
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
		return "", refusal(err, q.about("sqs:GetQueueUrl", name, false))
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

func (q *queues) about(action, name string, sending bool) subject {
	return subject{kind: q.kind, region: q.region, action: action, name: name, sending: sending, signed: q.signed}
}

// send implements outlet.
func (q *queues) send(ctx context.Context, b *batch) error {
	url, err := q.url(ctx, b.queue)
	if err != nil {
		return err
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(url), Entries: make([]types.SendMessageBatchRequestEntry, len(b.pieces))}
	for n := range b.pieces {
		e := b.pieces[n].entry
		to := &in.Entries[n]
		to.Id, to.MessageBody, to.MessageAttributes = aws.String(strconv.Itoa(n)), aws.String(e.body), e.attributes
		if e.group != "" {
			to.MessageGroupId, to.MessageDeduplicationId = aws.String(e.group), aws.String(e.dedup)
		}
	}
	about := q.about("sqs:SendMessage", b.queue, true)
	out, err := q.client.SendMessageBatch(ctx, in, once, unchecked)
	if err != nil {
		err = refusal(err, about)
		if broker.Classify(err).Code == codeNoQueue {
			q.forget(b.queue)
		}
		return err
	}
	b.unanswered()
	for i := range out.Successful {
		b.answered(out.Successful[i].Id, b.checked(&out.Successful[i]))
	}
	for i := range out.Failed {
		b.answered(out.Failed[i].Id, entryError(&out.Failed[i], about))
	}
	return nil
}

// unchecked leaves the checksums of an answer to [batch.checked]. The SDK ends the process
// on an entry without an id, and fails all of a batch for one entry.
func unchecked(o *sqs.Options) { o.DisableMessageChecksumValidation = true }

// checked reports an entry of which the service has another body than was sent.
func (b *batch) checked(e *types.SendMessageBatchResultEntry) error {
	p := b.piece(e.Id)
	if p == nil || e.MD5OfMessageBody == nil {
		return nil
	}
	if sum := md5.Sum([]byte(p.entry.body)); hex.EncodeToString(sum[:]) != *e.MD5OfMessageBody { //nolint:gosec // the service's choice
		return broker.Unknown(errChecksum, "", b.queue)
	}
	return nil
}

// look implements outlet. It asks for the queue's URL anew.
func (q *queues) look(ctx context.Context, name string) error {
	q.forget(name)
	_, err := q.url(ctx, name)
	return err
}

// ping implements outlet: it lists at most one queue.
func (q *queues) ping(ctx context.Context) error {
	_, err := q.client.ListQueues(ctx, &sqs.ListQueuesInput{MaxResults: aws.Int32(1)}, once)
	if err != nil {
		return refusal(err, q.about("sqs:ListQueues", "", false))
	}
	return nil
}

// once turns the SDK's retries off: the relay and the consumer retry, and know
// what may be sent again. It marks the errors of the credentials as such.
func once(o *sqs.Options) {
	o.Retryer = aws.NopRetryer{}
	if o.Credentials != nil {
		o.Credentials = &credentials{o.Credentials}
	}
}
