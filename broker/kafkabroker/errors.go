package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/secret"
)

var (
	errNoTopic     = errors.New("the topic does not exist")
	errTopicName   = errors.New("invalid Kafka topic name: use 1 to 249 letters, digits, dots, underscores and dashes")
	errGivenUp     = errors.New("a call that shared the batch was cancelled")
	errNoPartition = errors.New("the topic has no partitions")
)

// remedy adds to an error of the broker how a person can fix its cause.
func remedy(err error, topic string) error {
	var fix string
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		fix = "check user, password and sasl of the broker's URL; a password-file is read again for each new connection"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		fix = "give another sasl in the broker's URL: plain, scram-sha-256 or scram-sha-512"
	case errors.Is(err, kerr.IllegalSaslState):
		fix = "this listener takes no SASL: use the port of a SASL listener, or remove user, password and sasl from the broker's URL"
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		fix = "allow this user to WRITE and DESCRIBE the topic " + topic
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		fix = "allow this user IDEMPOTENT_WRITE on the cluster, or WRITE on a topic from Kafka 3 on"
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		fix = "allow this user to WRITE and DESCRIBE the transactional id"
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, errNoTopic):
		fix = "make the topic " + topic + ", or look for a wrong name or prefix"
	case errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		fix = "fewer brokers are in sync than the topic's min.insync.replicas: bring them back"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, fix)
}

// sourceRemedy is remedy for errors of a source.
func sourceRemedy(err error, topic, group string) error {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w; allow this user to READ and DESCRIBE the topic %s", err, topic)
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("%w; allow this user to READ the group %s", err, group)
	}
	return remedy(err, topic)
}

// act is how a partition reacts to the answer to a batch.
type act uint8

const (
	actDone        act = iota // appended
	actRepeated               // appended before, if there was an earlier try
	actRetry                  // send the same batch again, after looking up the leader
	actNewProducer            // the broker forgot our sequence numbers: retry under a new producer
	actSplit                  // nothing was appended because of some record in it
	actFail                   // nothing was appended, and a retry would not help
)

// actOn classifies an error code of a produce response.
func actOn(code int16) (act, error) {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return actDone, nil
	case errors.Is(err, kerr.DuplicateSequenceNumber):
		return actRepeated, err
	case errors.Is(err, kerr.OutOfOrderSequenceNumber), errors.Is(err, kerr.UnknownProducerID),
		errors.Is(err, kerr.InvalidProducerIDMapping), errors.Is(err, kerr.InvalidProducerEpoch),
		errors.Is(err, kerr.ProducerFenced):
		return actNewProducer, err
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge),
		errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.PolicyViolation):
		return actSplit, err
	case errors.Is(err, kerr.ThrottlingQuotaExceeded),
		errors.Is(err, kerr.InvalidTimestamp): // the sink sets the time: a clock is wrong, not a message
		return actFail, err
	case kerr.IsRetriable(err):
		return actRetry, err
	}
	return actFail, err
}

// tooLarge wraps err with the record's size, the limit and the way to raise it. limit
// is 0 if it is unknown.
func tooLarge(err error, bytes, limit int, whose sizeLimit, topic string) error {
	most := ""
	if limit > 0 {
		most = fmt.Sprintf(" of %d", limit)
	}
	return fmt.Errorf("%w: a record of %d bytes, above %s%s; %s", err, bytes, whose.name, most, strings.ReplaceAll(whose.fix, "TOPIC", topic))
}

var errTooLarge = errors.New("the record is too large")

// sizeLimit names a limit that a record exceeded, and how to raise it. The fix names
// the topic as TOPIC.
type sizeLimit struct{ name, fix string }

func clientLimit() sizeLimit {
	return sizeLimit{"the client's ProducerBatchMaxBytes (max-message-bytes in the URL)", "raise that, or leave it out: then the topic's own limit decides"}
}

func topicLimit() sizeLimit {
	return sizeLimit{"the topic's max.message.bytes", "raise it with kafka-configs.sh --alter --topic TOPIC --add-config max.message.bytes=N"}
}

// code returns the broker's name of an error, "" for other errors.
func code(err error) string {
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Message
	}
	return ""
}

// failure classifies the error for which a batch for topic was given up. mayBeWritten
// reports whether the broker may have appended the batch.
func failure(err error, topic string, mayBeWritten bool) error {
	err = remedy(err, topic)
	switch {
	case errors.Is(err, kerr.ThrottlingQuotaExceeded):
		return broker.Throttled(err, code(err), topic, 0)
	case shortOfReplicas(err):
		return broker.Outage(err, code(err), topic)
	case mayBeWritten:
		return broker.Unknown(err, code(err), topic)
	case notSent(err):
		return broker.Outage(err, code(err), "")
	}
	return broker.Outage(err, code(err), topic)
}

// shortOfReplicas reports whether the topic has too few replicas in sync. That is
// an outage of the topic even if the batch was appended: classified as unknown, it would
// cost the messages attempts while other topics work.
func shortOfReplicas(err error) bool {
	return errors.Is(err, kerr.NotEnoughReplicas) || errors.Is(err, kerr.NotEnoughReplicasAfterAppend)
}

// notSent reports whether a request failed before any of it was written: the
// connection could not be made, or its login was rejected.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, secret.ErrUnreadable) ||
		errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) ||
		errors.Is(err, kerr.IllegalSaslState)
}

// neverAppended reports whether nothing of a try that ended with err was or will
// be appended. Every error not listed here leaves that open: a leader can answer NOT_LEADER
// and REQUEST_TIMED_OUT, for example, after it has appended the batch,
// and UNKNOWN_SERVER_ERROR can have any cause.
func neverAppended(err error) bool {
	if notSent(err) {
		return true
	}
	var ke *kerr.Error
	if !errors.As(err, &ke) {
		return false
	}
	switch ke.Code {
	case kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicID.Code, kerr.InvalidTopicException.Code,
		kerr.TopicAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code,
		kerr.LeaderNotAvailable.Code, kerr.NotEnoughReplicas.Code, kerr.InvalidRequiredAcks.Code,
		kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code, kerr.InvalidRecord.Code,
		kerr.InvalidTimestamp.Code, kerr.PolicyViolation.Code, kerr.CorruptMessage.Code,
		kerr.UnsupportedForMessageFormat.Code, kerr.UnsupportedCompressionType.Code,
		kerr.OutOfOrderSequenceNumber.Code, kerr.UnknownProducerID.Code, kerr.InvalidProducerEpoch.Code,
		kerr.InvalidProducerIDMapping.Code, kerr.ProducerFenced.Code, kerr.ThrottlingQuotaExceeded.Code:
		return true
	}
	return false
}

// discoveryError classifies a failed lookup of topic, before anything was sent.
func discoveryError(ctx context.Context, err error, topic string) error {
	if ctx.Err() != nil {
		return broker.Outage(fmt.Errorf("not sent: look the topic up: %w", err), "", "")
	}
	err = remedy(err, topic)
	if c := code(err); c != "" && !notSent(err) {
		return broker.Outage(err, c, topic)
	}
	return broker.Outage(err, code(err), "")
}
