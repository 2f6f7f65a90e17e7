package awsbroker

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/awaited"
)

var accountShape = regexp.MustCompile(`^[0-9]{12}$`)

// topics are the topics of SNS of one account.
type topics struct {
	naming
	client  *sns.Client
	signed  aws.CredentialsProvider
	account string
	awaited awaited.Topics // by their ARNs
}

func newTopics(client *sns.Client, prefix, account string, standard bool) *topics {
	return &topics{
		naming: naming{kind: "topic", service: "sns", region: client.Options().Region, most: 256, prefix: prefix, standard: standard},
		client: client, signed: client.Options().Credentials, account: account,
	}
}

// arn is the address of a topic.
func (t *topics) arn(name string) string {
	if isARN(name) {
		return name
	}
	a := arn.ARN{Partition: "aws", Service: "sns", Region: t.region, AccountID: t.account, Resource: name}
	for _, p := range []struct{ region, partition string }{ // outside of the partition aws
		{"cn-", "aws-cn"}, {"us-gov-", "aws-us-gov"}, {"us-isob-", "aws-iso-b"}, {"us-isof-", "aws-iso-f"}, {"us-iso-", "aws-iso"}, {"eu-isoe-", "aws-iso-e"}, {"eusc-", "aws-eusc"},
	} {
		if strings.HasPrefix(t.region, p.region) {
			a.Partition = p.partition
			break
		}
	}
	return a.String()
}

func (t *topics) about(action, name string, sending bool) subject {
	return subject{kind: t.kind, region: t.region, action: action, name: name, sending: sending, signed: t.signed}
}

// send implements outlet.
func (t *topics) send(ctx context.Context, b *batch) error {
	if err := t.ready(ctx, b.queue); err != nil {
		return err
	}
	in := &sns.PublishBatchInput{TopicArn: aws.String(t.arn(b.queue)), PublishBatchRequestEntries: make([]types.PublishBatchRequestEntry, len(b.pieces))}
	for n := range b.pieces {
		e := b.pieces[n].entry
		to := &in.PublishBatchRequestEntries[n]
		to.Id, to.Message = aws.String(strconv.Itoa(n)), aws.String(e.body)
		to.MessageAttributes = make(map[string]types.MessageAttributeValue, len(e.attributes))
		for name, v := range e.attributes {
			to.MessageAttributes[name] = types.MessageAttributeValue{DataType: v.DataType, StringValue: v.StringValue}
		}
		if e.group != "" {
			to.MessageGroupId, to.MessageDeduplicationId = aws.String(e.group), aws.String(e.dedup)
		}
	}
	about := t.about("sns:Publish", b.queue, true)
	out, err := t.client.PublishBatch(ctx, in, singly)
	if err != nil {
		return t.noted(b.queue, refusal(err, about))
	}
	b.unanswered()
	for i := range out.Successful {
		b.answered(out.Successful[i].Id, nil)
	}
	for i := range out.Failed {
		f := &out.Failed[i]
		b.answered(f.Id, entryError(&sqstypes.BatchResultErrorEntry{Code: f.Code, Message: f.Message, SenderFault: f.SenderFault}, about))
	}
	return nil
}

// look implements outlet. Publishers need no permission to look.
func (t *topics) look(ctx context.Context, name string) error {
	_, err := t.client.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: aws.String(t.arn(name))}, singly)
	if err != nil {
		err = t.noted(name, refusal(err, t.about("sns:GetTopicAttributes", name, false)))
		if broker.Classify(err).Code != codeAccess {
			return err
		}
	}
	return t.ready(ctx, name)
}

// ping implements outlet: it lists topics, of which SNS sends a page.
func (t *topics) ping(ctx context.Context) error {
	if _, err := t.client.ListTopics(ctx, &sns.ListTopicsInput{}, singly); err != nil {
		return refusal(err, t.about("sns:ListTopics", "", false))
	}
	return nil
}

// mostLooked is how many subscriptions of a topic are looked at for advice.
const mostLooked = 20

// advise is [broker.Info].Advise.
func (t *topics) advise(ctx context.Context, names []string) (all []broker.Advice, err error) {
	for _, topic := range names {
		name := t.name(topic)
		if t.problem(name) != nil { // Probe reports it
			continue
		}
		found, err := t.adviseOn(ctx, topic, name)
		if err != nil {
			if code := broker.Classify(err).Code; code == codeNoTopic || code == codeAccess {
				continue
			}
			return nil, fmt.Errorf("awsbroker: read the subscriptions of %s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (t *topics) adviseOn(ctx context.Context, topic, name string) (all []broker.Advice, err error) {
	out, err := t.client.ListSubscriptionsByTopic(ctx, &sns.ListSubscriptionsByTopicInput{TopicArn: aws.String(t.arn(name))}, singly)
	if err != nil {
		return nil, refusal(err, t.about(listing, name, false))
	}
	if len(out.Subscriptions) == 0 {
		all = append(all, broker.Advice{
			Topic: topic, What: fmt.Sprintf("topic %s has no subscription", name),
			Why: dropped, Fix: t.subscribe(name),
		})
	}
	for i := range out.Subscriptions[:min(len(out.Subscriptions), mostLooked)] {
		s := &out.Subscriptions[i]
		endpoint := aws.ToString(s.Endpoint)
		id, parseErr := arn.Parse(aws.ToString(s.SubscriptionArn)) // one that waits for its confirmation has no ARN
		if aws.ToString(s.Protocol) != "sqs" || parseErr != nil {
			continue
		}
		if strings.HasSuffix(name, fifoSuffix) && !strings.HasSuffix(endpoint, fifoSuffix) {
			all = append(all, broker.Advice{
				Topic: topic, What: fmt.Sprintf("queue %s of topic %s is a standard queue", plainName(endpoint), name),
				Why: "it keeps no order and drops no repetitions", Fix: "subscribe a FIFO queue if the order of keys counts",
			})
		}
		set, err := t.client.GetSubscriptionAttributes(ctx, &sns.GetSubscriptionAttributesInput{SubscriptionArn: aws.String(id.String())}, singly)
		if err != nil {
			err = refusal(err, t.about("sns:GetSubscriptionAttributes", name, false))
			if code := broker.Classify(err).Code; code == codeNoTopic || code == codeAccess {
				continue // it has just ended, or may not be read
			}
			return nil, err
		}
		if set.Attributes["RawMessageDelivery"] != "true" {
			all = append(all, broker.Advice{
				Topic: topic, What: fmt.Sprintf("queue %s of topic %s gets messages in an envelope of SNS", plainName(endpoint), name),
				Why: "consumers find neither id nor headers: the inbox drops no repetitions",
				Fix: "aws sns set-subscription-attributes --region " + t.region + " --subscription-arn " + id.String() + " --attribute-name RawMessageDelivery --attribute-value true",
			})
		}
	}
	return all, nil
}

// singly is once for SNS.
func singly(o *sns.Options) {
	o.Retryer = aws.NopRetryer{}
	if o.Credentials != nil {
		o.Credentials = &credentials{o.Credentials}
	}
}
