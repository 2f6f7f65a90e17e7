package awsbroker

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/postrider/postrider/broker"
)

// listing is the action that shows the subscriptions of a topic.
const listing = "sns:ListSubscriptionsByTopic"

// dropped is why a topic needs a subscription.
const dropped = "SNS keeps no messages: it drops those without a subscription"

// subscribe is the command that subscribes a queue to a topic.
func (t *topics) subscribe(name string) string {
	return "aws sns subscribe --region " + t.region + " --topic-arn " + t.arn(name) + " --protocol sqs --notification-endpoint QUEUE_ARN --attributes RawMessageDelivery=true"
}

// noted returns err, and remembers a topic that is missing: the person who creates it
// subscribes to it afterwards.
func (t *topics) noted(name string, err error) error {
	if broker.Classify(err).Code == codeNoTopic {
		t.awaited.Missing(t.arn(name))
	}
	return err
}

// ready returns an error while a topic that was missing has no subscription. Any other
// topic costs no request.
func (t *topics) ready(ctx context.Context, name string) error {
	return t.awaited.Ready(ctx, t.arn(name), func(ctx context.Context) error { return t.heard(ctx, name) })
}

// heard returns an error unless a topic has a confirmed subscription. Credentials that
// may not list subscriptions show nothing: the topic then counts as one that has it.
func (t *topics) heard(ctx context.Context, name string) error {
	in := &sns.ListSubscriptionsByTopicInput{TopicArn: aws.String(t.arn(name))}
	for {
		out, err := t.client.ListSubscriptionsByTopic(ctx, in, singly)
		if err != nil {
			err = t.noted(name, refusal(err, t.about(listing, name, false)))
			if broker.Classify(err).Code == codeAccess {
				return nil
			}
			return err
		}
		for i := range out.Subscriptions {
			if arn.IsARN(aws.ToString(out.Subscriptions[i].SubscriptionArn)) { // otherwise PendingConfirmation, or Deleted
				return nil
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return broker.Outage(fmt.Errorf("topic %q was missing and has no confirmed subscription yet; %s; create one: %s; to publish without a subscription, restart the relays", name, dropped, t.subscribe(name)), codeUnheard, name)
		}
	}
}
