package awsbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
)

// Ping is [broker.Info].Ping: it lists queues, or topics. Credentials that may not list
// them are accepted ones.
func (s *Sink) Ping(ctx context.Context) error {
	e := broker.Classify(s.to.ping(ctx))
	if e == nil || e.Code == codeAccess {
		return nil
	}
	if e.Class != broker.ClassThrottled {
		s.drop()
	}
	return s.unreached(e)
}

// unreached returns Probe's error, which has ErrRefused if a person must act.
func (s *Sink) unreached(e *broker.Error) error {
	service := strings.ToUpper(s.info.Name)
	var lacking *credentialsError
	if e.Code == codeCredentials && (!errors.As(e, &lacking) || !lacking.passes()) {
		return fmt.Errorf("reach %s: %w: %w", service, broker.ErrRefused, e)
	}
	return fmt.Errorf("reach %s: %w", service, e)
}

// Probe is [broker.Info].Probe. Whether messages may be sent to a queue or topic is not
// known before the first one: the services have no request that asks for it.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	lacking := make([]error, len(topics))
	for i, topic := range topics {
		name := s.to.name(topic)
		if lacking[i] = s.to.problem(name); lacking[i] != nil {
			continue
		}
		e := broker.Classify(s.to.look(ctx, name))
		switch {
		case e == nil:
		case e.Code == codeNoQueue || e.Code == codeNoTopic || e.Code == codeUnheard || e.Code == codeAccess:
			lacking[i] = e.Err
		default:
			return nil, s.unreached(e)
		}
	}
	return lacking, nil
}

// settings reads attributes of a topic's queue.
func (q *queues) settings(ctx context.Context, topic string) (name string, all map[string]string, err error) {
	name = q.name(topic)
	url, err := q.url(ctx, name)
	if err != nil {
		return name, nil, err
	}
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(url), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	}, once)
	if err != nil {
		return name, nil, refusal(err, q.about("sqs:GetQueueAttributes", name, false))
	}
	return name, out.Attributes, nil
}

// shortKeeping is a retention below which a queue's keeping is worth a word: consumers
// may be away for a weekend.
const shortKeeping = 4 * 24 * time.Hour

// advise is [broker.Info].Advise.
func (q *queues) advise(ctx context.Context, topics []string) ([]broker.Advice, error) {
	var all []broker.Advice
	for _, topic := range topics {
		if q.problem(q.name(topic)) != nil { // Probe reports it
			continue
		}
		name, set, err := q.settings(ctx, topic)
		if err != nil {
			if code := broker.Classify(err).Code; code == codeNoQueue || code == codeAccess {
				continue
			}
			return nil, fmt.Errorf("awsbroker: read the settings of %s: %w", name, err)
		}
		all = append(all, adviseOn(topic, name, set)...)
	}
	return all, nil
}

func adviseOn(topic, name string, set map[string]string) (all []broker.Advice) {
	if kept, err := retention(set); err == nil && kept < shortKeeping {
		all = append(all, broker.Advice{
			Topic: topic, What: fmt.Sprintf("queue %s keeps messages for %v", name, kept),
			Why: "messages that no consumer has deleted by then are lost",
			Fix: "aws sqs set-queue-attributes --queue-url URL --attributes MessageRetentionPeriod=1209600",
		})
	}
	var redrive struct {
		Count json.Number `json:"maxReceiveCount"`
	}
	if text := set["RedrivePolicy"]; text != "" && strings.HasSuffix(name, fifoSuffix) && json.Unmarshal([]byte(text), &redrive) == nil {
		all = append(all, broker.Advice{
			Topic: topic, What: fmt.Sprintf("queue %s moves a message to its dead letter queue after %s receives", name, redrive.Count),
			Why: "the later messages of its group are delivered without it, which breaks the key's order; " +
				"SQS counts receives, not attempts: an outage and a failing message of the same group use them up",
			Fix: "remove the redrive policy; if it has to stay, set maxReceiveCount to 1000, the maximum",
		})
	}
	return all
}

var errNoRetention = errors.New("the answer has no MessageRetentionPeriod")

func retention(set map[string]string) (time.Duration, error) {
	n, err := strconv.Atoi(set["MessageRetentionPeriod"])
	if err != nil {
		return 0, errNoRetention
	}
	return time.Duration(n) * time.Second, nil
}

// keeps is [broker.Info].Keeps.
func (q *queues) keeps(ctx context.Context, topic string) (broker.Keeping, error) {
	name, set, err := q.settings(ctx, topic)
	if err != nil {
		return broker.Keeping{}, err
	}
	kept, err := retention(set)
	if err != nil {
		return broker.Keeping{}, fmt.Errorf("awsbroker: read the settings of %s: %w", name, err)
	}
	return broker.Keeping{For: kept, Removes: true, Setting: "MessageRetentionPeriod of queue " + name}, nil
}
