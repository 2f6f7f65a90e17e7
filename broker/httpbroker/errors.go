package httpbroker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/postrider/postrider/broker"
)

// EndpointError is the reason for which an endpoint did not accept a message. It has only
// the status of the answer, nothing else of it.
type EndpointError struct {
	Endpoint string
	Status   int    // 0: there was no answer
	Reason   string // the event and its remedy, if one is known
	Err      error  // error of the network, or nil
}

func (e *EndpointError) Error() string {
	text := "endpoint " + e.Endpoint + ": "
	if e.Status > 0 {
		text += "answer " + strconv.Itoa(e.Status) + " " + http.StatusText(e.Status) + ": "
	}
	text += e.Reason
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *EndpointError) Unwrap() error { return e.Err }

// Codes of errors without a status.
const (
	codeNoEndpoint  = "NO_ENDPOINT"     // no endpoint's topics name the message's topic: add it
	codeTooLarge    = "TOO_LARGE"       // the request is above the endpoint's limit: raise it, or claim large payloads
	codeRefused     = "ADDRESS_REFUSED" // the address is not public, or the port is not allowed: allow=ADDRESS, ports=PORT
	codeUnreachable = "UNREACHABLE"     // no connection, nothing was sent: check name, network, proxy
	codeTLS         = "TLS"             // no TLS connection, nothing was sent: check the certificates
	codeTimeout     = "TIMEOUT"         // no answer within the timeout: check the receiver, or raise timeout
	codeNoAnswer    = "NO_ANSWER"       // the connection ended before the answer: check the receiver
	codeSlow        = "SLOW"            // the request is late and continues separately: check the receiver
	codeBusy        = "BUSY"            // the endpoint's concurrency is used up: wait, or raise concurrency
	codeStopped     = "STOPPED"         // a person or 410 Gone stopped the endpoint: postrider resume --endpoint NAME --reason WHY
	codeCredential  = "CREDENTIAL"      // a secret, certificate or authorization cannot be read: check its file
	codeClosed      = "CLOSED"          // the endpoint was removed or the sink closed: the message is sent again
)

// fault is the kind of failure.
type fault uint8

const (
	accepted  fault = iota
	rejected        // the message cannot succeed as it is
	throttled       // the endpoint asked for a pause
	gone            // the endpoint asked for no more requests
	down            // certainly the endpoint's fault: nothing was sent
	doubtful        // the endpoint's fault or the message's: evidence decides
	cancelled       // no call waits for the answer
)

// verdict is the outcome of one request.
type verdict struct {
	fault      fault
	code       string
	err        *EndpointError
	retryAfter time.Duration
	refusal    bool // a living endpoint read the request and found it wrong
	late       bool // the request used up its time
}

// judgeStatus classifies a status by the table of README.md.
func judgeStatus(endpoint string, status int, header http.Header, now time.Time) verdict {
	v := verdict{code: "HTTP_" + strconv.Itoa(status), err: &EndpointError{Endpoint: endpoint, Status: status}}
	switch {
	case status >= 200 && status <= 299:
		return verdict{}
	case status == http.StatusGone:
		v.fault, v.err.Reason = gone, "it answered 410 Gone and is stopped until a person resumes it: "+resumeIt(endpoint)+
			", or restart the relay if its store does not record stops"
	case status == http.StatusTooManyRequests, status == http.StatusTooEarly:
		v.fault, v.err.Reason = throttled, "it asks for fewer messages"
		v.retryAfter = retryAfter(header, now)
	case status == http.StatusServiceUnavailable && header.Get("Retry-After") != "":
		v.fault, v.err.Reason = throttled, "it asks for a pause"
		v.retryAfter = retryAfter(header, now)
	case status == http.StatusRequestEntityTooLarge, status == http.StatusUnsupportedMediaType,
		status == http.StatusUnprocessableEntity, status == http.StatusRequestURITooLong, status == http.StatusRequestHeaderFieldsTooLarge:
		v.fault, v.err.Reason = rejected, "it rejects the message as it is"
	case status >= 300 && status <= 399:
		v.fault, v.err.Reason = doubtful, "redirects are not followed: configure the target URL"
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusProxyAuthRequired:
		v.fault, v.err.Reason = doubtful, "check its secret and authorization"
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		v.fault, v.err.Reason = doubtful, "check that its URL is right and accepts POST"
	case status == http.StatusBadRequest, status == http.StatusNotAcceptable, status == http.StatusConflict, status == http.StatusPreconditionFailed:
		v.fault, v.refusal, v.err.Reason = doubtful, true, "it refuses the message: check its secret and the endpoint's log"
	default:
		v.fault, v.err.Reason = doubtful, "the message was not accepted"
	}
	return v
}

// maxRetryAfter is the longest pause that an endpoint may ask for.
const maxRetryAfter = time.Hour

// retryAfter reads the header Retry-After, seconds or a date (RFC 9110 section
// 10.2.3). It returns 0 without that header.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	} else if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// judgeError classifies the error of a request without an answer. Only without a
// connection it is certain that nothing was sent.
func judgeError(endpoint string, err error, connected bool) verdict {
	var (
		refused  *AddressError
		dial     *net.OpError
		unproven *tls.CertificateVerificationError
		unknown  x509.UnknownAuthorityError
		host     x509.HostnameError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		timeout  net.Error
	)
	e := &EndpointError{Endpoint: endpoint, Err: err}
	late := errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case errors.As(err, &refused):
		e.Err, e.Reason = refused, "its address is refused"
		return verdict{fault: down, code: codeRefused, err: e}
	case errors.As(err, &dial) && dial.Op == "dial":
		e.Reason = "it cannot be reached"
		return verdict{fault: down, code: codeUnreachable, err: e, late: late}
	case errors.As(err, &unproven), errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &record), errors.As(err, &alert):
		e.Reason = "no TLS connection"
		return verdict{fault: down, code: codeTLS, err: e}
	case errors.Is(err, context.Canceled), errors.Is(err, errBodyGone):
		e.Reason = "the request was aborted"
		return verdict{fault: cancelled, err: e}
	case !connected:
		e.Reason, e.Err = "no connection: TLS or the proxy failed, or took too long", nil // the error's text may repeat an answer
		return verdict{fault: down, code: codeUnreachable, err: e, late: late}
	case late:
		e.Reason, e.Err = "no answer in time", nil
		return verdict{fault: doubtful, code: codeTimeout, err: e, late: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &dial):
		e.Reason = "the connection broke before the answer"
	default:
		e.Reason, e.Err = "its answer is not HTTP, or the connection broke", nil // the error's text may repeat the answer
	}
	return verdict{fault: doubtful, code: codeNoAnswer, err: e}
}

// resumeIt returns the command that ends a stop recorded by the store.
func resumeIt(endpoint string) string {
	return "postrider resume --endpoint " + strconv.Quote(endpoint) + " --reason WHY"
}

// outage returns an outage with the endpoint as destination.
func (t *target) outage(code, reason string) error {
	return broker.Outage(&EndpointError{Endpoint: t.p.Name, Reason: reason}, code, t.dest)
}

func errNoEndpoint(topic string) error {
	return broker.Outage(errors.New("no endpoint receives the topic: name it in an endpoint's topics"), codeNoEndpoint, topic)
}
