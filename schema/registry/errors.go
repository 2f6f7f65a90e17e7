package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/postrider/postrider/broker"
)

// Codes of an [Error].
const (
	CodeUnreachable = "REGISTRY_UNREACHABLE"   // the schema registry does not answer, or with a server error: the message waits for it without an attempt
	CodeDenied      = "REGISTRY_DENIED"        // the schema registry rejected the credentials, or they may not read the subject: correct user, password or permission
	CodeSubject     = "SCHEMA_SUBJECT_UNKNOWN" // the schema registry has no such subject: register it with postrider schema register, or correct strategy and record of the route
	CodeUnknown     = "SCHEMA_UNKNOWN"         // the schema registry has the subject but not this version, or not this id: register it, then retry the dead letter
	CodeRecord      = "SCHEMA_RECORD_UNKNOWN"  // the Protobuf schema has several messages and not this one: set record in the route
	CodeGUID        = "SCHEMA_WITHOUT_GUID"    // the schema registry gives no GUIDs: use framing id
	CodeFrame       = "FRAME_UNREADABLE"       // the payload does not begin with a schema id, and the route says that it does: correct the writer or framing
	CodeRefused     = "SCHEMA_REFUSED"         // the schema registry refused a schema: correct the schema
)

// Error is a failed request to a registry.
type Error struct {
	Code     string // one of the codes above
	Registry string // scheme, host and path
	Subject  string // with its version; or an id
	Reason   string // what is wrong, and how to fix it
	Err      error  // of the connection or the answer; nil: none
}

// Error names subject, registry and fix.
func (e *Error) Error() string {
	s := "schema " + e.Subject + " in registry " + e.Registry + ": " + e.Reason
	if e.Err != nil {
		s += ": " + oneLine(e.Err)
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// ErrorCode returns Code.
func (e *Error) ErrorCode() string { return e.Code }

// Down reports whether the registry did not answer the question.
func (e *Error) Down() bool { return e.Code == CodeUnreachable }

// oneLine bounds what a registry says.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > 300 {
		text = text[:300] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// wrong makes an Error of what a request returned.
func (c *Client) wrong(what string, err error) *Error {
	e := &Error{Registry: c.place, Subject: what, Err: err, Code: CodeUnreachable, Reason: "no answer"}
	var answer *sr.ResponseError
	if !errors.As(err, &answer) {
		var syntax *json.SyntaxError
		var mistyped *json.UnmarshalTypeError
		var request *url.Error // it repeats the address
		if errors.As(err, &request) {
			e.Err = request.Err
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			e.Reason, e.Err = fmt.Sprintf("no answer within %s", c.timeout), nil
		case errors.As(err, &syntax) || errors.As(err, &mistyped):
			e.Reason, e.Err = fmt.Sprintf("wrong answer: not the JSON of a registry, or more than %d MiB; correct the registry or the proxy before it", answerMost>>20), nil
		}
		return e
	}
	status := answer.StatusCode
	if answer.ErrorCode == 0 { // not in a registry's form, such as the page of a proxy
		e.Err = nil
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.Code, e.Reason = CodeDenied, fmt.Sprintf("access denied (HTTP %d): correct the user, its password or its permission to read the subject", status)
	case status == http.StatusTooManyRequests || status == http.StatusRequestTimeout: // with any code in the answer
		e.Reason = fmt.Sprintf("too busy (HTTP %d)", status)
	case answer.ErrorCode == sr.ErrSubjectNotFound.Code:
		e.Code, e.Reason, e.Err = CodeSubject, "unknown subject: run `postrider schema register`, or correct strategy and record of the route", nil
	case status == http.StatusNotFound && answer.ErrorCode != 0 && answer.ErrorCode != http.StatusNotFound:
		e.Code, e.Reason, e.Err = CodeUnknown, "unknown version or id: run `postrider schema register`, then retry", nil
	case status == http.StatusNotFound:
		e.Reason = "the address has no registry (HTTP 404): correct the path, such as /apis/ccompat/v7 for Apicurio"
	case status >= 300 && status < 400:
		e.Reason = fmt.Sprintf("the address redirects (HTTP %d): use the registry's own address", status)
	case status == http.StatusConflict || status == http.StatusUnprocessableEntity || status < 500 && answer.ErrorCode >= 40000:
		e.Code, e.Reason = CodeRefused, fmt.Sprintf("refused (HTTP %d)", status)
	default: // also a proxy's 400 or 408, which is no word of the registry about a schema
		e.Reason = fmt.Sprintf("HTTP %d", status)
	}
	return e
}

// retryAfter is the pause between questions to a registry that does not answer.
const retryAfter = 2 * time.Second

// classify makes err an answer of a sink. A registry that is down says nothing about a
// message, even while others are sent with ids from the cache: it is never
// an attempt. An unknown subject holds the destination, unless others of it work.
func classify(err error, destination string) error {
	var e *Error
	if !errors.As(err, &e) { // ctx ended before the message was sent
		return broker.Throttled(err, CodeUnreachable, destination, retryAfter)
	}
	switch e.Code {
	case CodeUnreachable:
		return broker.Throttled(err, e.Code, destination, retryAfter)
	case CodeDenied, CodeSubject, CodeGUID:
		return broker.Outage(err, e.Code, destination)
	}
	return broker.Rejected(err, e.Code, destination)
}
