package awsbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/postrider/postrider/broker"
)

// Codes beside the service's own.
const (
	codeNoQueue     = "QUEUE_MISSING"   // the queue does not exist: create it, or correct region, account or name
	codeNoTopic     = "TOPIC_MISSING"   // the topic of SNS does not exist: create it, or correct region, account or name
	codeUnheard     = "NO_SUBSCRIPTION" // the topic of SNS was missing and has no confirmed subscription yet: create one, or restart the relays to publish without
	codeAccess      = "ACCESS_DENIED"   // the credentials lack an action on the queue or topic: allow it in the IAM or resource policy
	codeCredentials = "CREDENTIALS"     // the credentials are missing, expired or wrong: correct them
	codeKMS         = "KMS"             // the KMS key of queue or topic cannot be used: allow kms:GenerateDataKey and kms:Decrypt, or repair the key
	codeThrottled   = "THROTTLED"       // the service limits our requests: wait, or use high throughput FIFO queues
	codeTooLarge    = "TOO_LARGE"       // the message is above the limit of queue or topic: claim large payloads
	codeQueueName   = "QUEUE_NAME"      // the topic is not a valid queue name, or an ARN of another region or type: use a route with a valid one, or another URL
	codeTopicName   = "TOPIC_NAME"      // the topic is not a valid name of a topic of SNS, or an ARN of another region or type: use a route with a valid one, or another URL
	codeNoID        = "NO_ID"           // the message has no id: a FIFO queue or topic needs one
)

var (
	errClosed   = errors.New("awsbroker: the sink is closed")
	errNoID     = errors.New("a message for a FIFO queue or topic needs an id")
	errChecksum = errors.New("the service's checksum is not that of the message's body")
	errNoAnswer = errors.New("the service's answer does not name the entry")
)

// throttledFor is how long a service that throttles is left alone when it names no time.
const throttledFor = time.Second

// subject names the object of a request, for errors.
type subject struct {
	kind, name string // "queue" or "topic"
	region     string
	action     string // of IAM
	sending    bool   // the request may have stored messages
	signed     aws.CredentialsProvider
}

func (s *subject) denied(err error) error {
	return broker.Outage(fmt.Errorf("not allowed: %w; allow %s on %s %s", err, s.action, s.kind, s.name), codeAccess, s.name)
}

// refusal classifies an error of a request.
func refusal(err error, about subject) error {
	var lacking *credentialsError
	if errors.As(err, &lacking) { // before answered: the service that answered is STS or another source of credentials
		return broker.Outage(fmt.Errorf("%s: %w; %s", lacking.what(), lacking, lacking.remedy()), codeCredentials, "")
	}
	if e := answered(err, &about); e != nil {
		return e
	}
	var (
		signing *v4.SigningError
		dial    *net.OpError
		lookup  *net.DNSError
	)
	switch {
	case errors.As(err, &signing):
		return broker.Outage(fmt.Errorf("no usable credentials: %w; %s", signing.Err, setCredentials), codeCredentials, "")
	case errors.As(err, &lookup):
		return broker.Outage(fmt.Errorf("the service cannot be reached: %w; check the region or the endpoint", lookup), "", "")
	case errors.As(err, &dial) && dial.Op == "dial":
		return broker.Outage(fmt.Errorf("the service cannot be reached: %w", dial), "", "")
	case about.sending:
		return broker.Unknown(fmt.Errorf("no answer: %w", bare(err)), "", about.name)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return broker.Unknown(bare(err), "", about.name)
	}
	if errors.As(err, new(*url.Error)) {
		return broker.Outage(fmt.Errorf("no answer: %w", bare(err)), "", "")
	}
	return broker.Outage(bare(err), "", "")
}

// bare returns an error without the SDK's layers, which do not help a reader.
func bare(err error) error {
	var (
		sent *url.Error
		op   *smithy.OperationError
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &sent):
		return sent.Err
	case errors.As(err, &op):
		return op.Err
	}
	return err
}

// answered classifies the service's own answer; nil if it has not answered. Only an
// answer to the sending of messages rejects them: a rejected message is a dead letter.
func answered(err error, about *subject) error {
	var (
		api  smithy.APIError
		resp *smithyhttp.ResponseError
	)
	status, after := 0, throttledFor
	if errors.As(err, &resp) && resp.Response != nil {
		status = resp.HTTPStatusCode()
		after = retryAfter(resp.Response.Header)
	}
	if !errors.As(err, &api) {
		return between(status, about)
	}
	code := shortCode(api.ErrorCode())
	err = fmt.Errorf("%s: %s", code, strings.TrimSuffix(api.ErrorMessage(), "."))
	if denied(code) {
		return about.denied(err)
	}
	switch code {
	case "QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "NotFound", "NotFoundException":
		return missing(err, about)
	case "InvalidClientTokenId", "InvalidAccessKeyId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"ExpiredToken", "ExpiredTokenException", "MissingAuthenticationToken", "MissingAuthenticationTokenException", "IncompleteSignature",
		"InvalidSecurity", "RequestExpired", "OptInRequired":
		renew(about.signed)
		return broker.Outage(fmt.Errorf("credentials rejected: %w; check access key, role, session token and the machine's clock", err), codeCredentials, "")
	default:
		if e := busy(err, code, about, after); e != nil {
			return e
		}
		switch {
		case status == http.StatusForbidden:
			return about.denied(err)
		case status == http.StatusTooManyRequests:
			return broker.Throttled(err, codeThrottled, about.name, after)
		case status == http.StatusServiceUnavailable:
			return broker.Outage(err, code, "")
		case status >= http.StatusInternalServerError:
			return broker.Unknown(err, code, about.name)
		}
		if about.sending && aboutContent(code) && !strings.Contains(api.ErrorMessage(), "TopicArn") { // a topic's ARN is no message's fault
			return broker.Rejected(err, code, about.name)
		}
		return broker.Outage(fmt.Errorf("the service refused the request: %w", err), code, about.name)
	}
}

// between classifies a refusal in a form that is not the service's: a proxy, a firewall or
// another server has answered, and stored nothing. nil: the status does not show that.
func between(status int, about *subject) error {
	switch {
	case status == http.StatusProxyAuthRequired:
		return broker.Outage(errors.New("the proxy asks for credentials (HTTP 407): set them in HTTPS_PROXY"), "", "")
	case status == http.StatusTooManyRequests:
		return broker.Throttled(errors.New("HTTP 429"), codeThrottled, about.name, throttledFor)
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return broker.Outage(fmt.Errorf("HTTP %d without an error code of the service: check the endpoint and the proxies before it, and whether the credentials allow %s", status, about.action), "", "")
	}
	return nil
}

// aboutContent reports whether code is that of a request whose messages the service
// does not take.
func aboutContent(code string) bool {
	switch code {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterCombination", "MissingParameter",
		"BatchRequestTooLong", "InvalidAttributeValue", "InvalidAttributeName", "ValidationError", "ValidationException",
		"InvalidParameter", "ParameterValueInvalid": // of SNS
		return true
	}
	return false
}

// busy classifies codes that a request, and an entry of a batch, may have; nil: none of them.
func busy(err error, code string, about *subject, after time.Duration) error {
	switch code {
	case "RequestThrottled", "ThrottlingException", "Throttling", "Throttled", "ThrottledException", "TooManyRequestsException", "OverLimit", "SlowDown", "KmsThrottled", "KMSThrottlingException", "KMSThrottling",
		"RequestLimitExceeded", "PriorRequestNotComplete":
		return broker.Throttled(err, codeThrottled, about.name, after)
	case "ServiceUnavailable":
		return broker.Outage(err, code, "")
	case "InternalError", "InternalFailure", "InternalServerError", "InternalErrorException":
		return broker.Unknown(err, code, about.name)
	}
	if strings.HasPrefix(strings.ToLower(code), "kms") {
		return broker.Outage(fmt.Errorf("%w; allow kms:GenerateDataKey and kms:Decrypt on the %s's key, and enable it", err, about.kind), codeKMS, about.name)
	}
	return nil
}

// missing is the outage of a queue or topic that does not exist.
func missing(err error, about *subject) error {
	create, code, fifo, then := "aws sqs create-queue --queue-name ", codeNoQueue, "FifoQueue", ""
	if about.kind == "topic" {
		create, code, fifo = "aws sns create-topic --name ", codeNoTopic, "FifoTopic"
		then = "; until it is restarted, a relay that met this error waits for the topic's first subscription (needs " + listing + ")"
	}
	create += plainName(about.name)
	if strings.HasSuffix(about.name, fifoSuffix) {
		create += " --attributes " + fifo + "=true"
	}
	region := "this region"
	if about.region != "" {
		region = about.region
		create += " --region " + region
	}
	return broker.Outage(fmt.Errorf("%s %q does not exist in %s of this account: %w; check region and account, or create it: %s%s", about.kind, about.name, region, err, create, then), code, about.name)
}

// entryError classifies the answer to one entry of a batch. An entry of a request that
// sends is a message, which can be rejected.
func entryError(f *types.BatchResultErrorEntry, about subject) error {
	code := shortCode(aws.ToString(f.Code))
	err := fmt.Errorf("%s: %s", code, aws.ToString(f.Message))
	if e := busy(err, code, &about, throttledFor); e != nil {
		return e
	}
	switch {
	case denied(code):
		return about.denied(err)
	case about.sending && f.SenderFault:
		return broker.Rejected(err, code, about.name)
	}
	return broker.Failed(err, code, about.name)
}

// denied reports whether code is that of an action that the credentials may not do.
func denied(code string) bool {
	switch code {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException":
		return true
	}
	return false
}

// shortCode is a code without its namespace: com.amazonaws.sqs#QueueDoesNotExist, or
// AWS.SimpleQueueService.NonExistentQueue in the older protocol.
func shortCode(code string) string {
	code = code[strings.LastIndexByte(code, '#')+1:]
	return strings.TrimPrefix(code, "AWS.SimpleQueueService.")
}

// retryAfter returns the value of the header of that name.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 1 || n > 3600 {
		return throttledFor
	}
	return time.Duration(n) * time.Second
}

// ownFault reports that the service refused the request for its content. One of
// several entries may be why.
func ownFault(err error) bool {
	e := broker.Classify(err)
	return e != nil && e.Class == broker.ClassRejected
}
