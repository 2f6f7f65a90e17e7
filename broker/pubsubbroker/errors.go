package pubsubbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/postrider/postrider/broker"
)

// Codes of the adapter's answers.
const (
	codeMissing     = "NOT_FOUND"        // the topic or subscription does not exist: create it, or correct project and name
	codeUnheard     = "NO_SUBSCRIPTION"  // the topic was missing and has no subscription yet: create one, or restart the relays to publish without
	codeAccess      = "ACCESS_DENIED"    // the credentials lack a permission: grant it
	codeCredentials = "CREDENTIALS"      // the credentials are missing, expired or wrong: correct them
	codeThrottled   = "THROTTLED"        // the project's quota is used up: wait, or raise it
	codeRefused     = "INVALID_ARGUMENT" // the service refuses the message or its attributes: correct its writer
	codeTooLarge    = "TOO_LARGE"        // the message is above 10 MB: claim large payloads
	codeTopicName   = "TOPIC_NAME"       // the topic is not a valid name: use a route with a valid one
	codeAttributes  = "ATTRIBUTES"       // the headers need more than 100 attributes: send fewer
)

var (
	errClosed = errors.New("pubsubbroker: the sink is closed")
	errIDs    = errors.New("the service's answer has another number of ids than the request has messages")
)

// throttledFor is how long a service that throttles is left alone when it names no time.
const throttledFor = time.Second

// subject names the object of a request, for errors.
type subject struct {
	kind, name string // "topic" or "subscription"
	project    string
	permission string
	sending    bool // the request may have stored messages
}

// refusal classifies an error of a request.
func refusal(err error, about subject) error {
	st, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return broker.Unknown(err, "", about.name)
		}
		st = status.New(codes.Unknown, err.Error())
	}
	switch text := st.Message(); {
	case strings.Contains(text, "could not find default credentials"):
		return lacking(err)
	case strings.Contains(text, "per-RPC creds failed"): // the request was not sent
		if strings.Contains(text, "invalid_grant") {
			return lacking(err)
		}
		return broker.Outage(fmt.Errorf("fetch an access token: %w", err), "", "")
	}
	told := fmt.Errorf("%s: %s", code.Code(st.Code()), st.Message())
	switch st.Code() {
	case codes.NotFound:
		then := ""
		if about.kind == "topic" {
			then = "; until it is restarted, a relay that met this error waits for the topic's first subscription (needs " + looking + ")"
		}
		return broker.Outage(fmt.Errorf("%s %q does not exist in project %s: %w; check the project, or create it: gcloud pubsub %ss create %s --project %s%s", about.kind, about.name, about.project, told, about.kind, about.name, about.project, then), codeMissing, about.name)
	case codes.PermissionDenied:
		return broker.Outage(fmt.Errorf("not allowed: %w; grant %s on %s %s", told, about.permission, about.kind, about.name), codeAccess, about.name)
	case codes.Unauthenticated:
		return lacking(told)
	case codes.ResourceExhausted:
		return broker.Throttled(told, codeThrottled, about.name, delay(st))
	case codes.InvalidArgument:
		if about.sending && !strings.Contains(st.Message(), "Invalid resource name") { // the messages are not at fault
			return broker.Rejected(told, codeRefused, about.name)
		}
		return broker.Outage(told, codeRefused, about.name)
	case codes.FailedPrecondition, codes.Unimplemented:
		return broker.Outage(told, code.Code(st.Code()).String(), about.name)
	case codes.Unavailable:
		if unsent(st.Message()) {
			return broker.Outage(fmt.Errorf("the service cannot be reached: %w", told), "", "")
		}
	}
	if about.sending {
		return broker.Unknown(fmt.Errorf("no answer: %w", told), "", about.name)
	}
	return broker.Outage(told, "", "")
}

// unsent reports that gRPC had no connection for the request. A connection that ended
// under a request is a "connection error" too, but the request may have arrived.
func unsent(message string) bool {
	for _, cause := range []string{"Error while dialing", "name resolver error", "last resolver error", "authentication handshake failed", "error reading server preface"} {
		if strings.Contains(message, cause) {
			return true
		}
	}
	return false
}

// lacking is the outage of missing or wrong credentials.
func lacking(err error) error {
	return broker.Outage(fmt.Errorf("no usable credentials: %w; set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account", err), codeCredentials, "")
}

// rejected reports that the service did not accept the credentials. A new client looks for
// them again: a file may have been replaced, and a token withdrawn before its end.
func rejected(err error) bool { return broker.Classify(err).Code == codeCredentials }

// delay is the service's wish, if it has one.
func delay(st *status.Status) time.Duration {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() > 0 {
			return min(info.GetRetryDelay().AsDuration(), time.Hour)
		}
	}
	return throttledFor
}

// ackFailures returns the ack ids that the service refused, of a request to a
// subscription with exactly-once delivery. The value is true if a retry cannot succeed.
func ackFailures(err error) (failed map[string]bool) {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		for id, what := range info.GetMetadata() {
			permanent := strings.HasPrefix(what, "PERMANENT_FAILURE_")
			if permanent || strings.HasPrefix(what, "TRANSIENT_FAILURE_") {
				if failed == nil {
					failed = make(map[string]bool)
				}
				failed[id] = permanent
			}
		}
	}
	return failed
}
