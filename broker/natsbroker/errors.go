package natsbroker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// Error codes of a stream that are about one message.
const (
	codeMessageTooLarge = 10054
	codeHeadersTooLarge = 10097
)

// codeNotStored is the answer of a full stream with discard: new, and of a stream with
// other failures: only the text distinguishes them.
const codeNotStored = 10077

// full reports whether nats-server refused a message because its stream is full.
func full(err *jetstream.APIError) bool {
	return err.ErrorCode == codeNotStored && (strings.Contains(err.Description, "maximum messages exceeded") ||
		strings.Contains(err.Description, "maximum messages per subject exceeded") || strings.Contains(err.Description, "maximum bytes exceeded"))
}

// remedy adds to an error of the connection how a person can fix its cause.
func remedy(err error) error {
	switch {
	case unwelcome(err):
		return fmt.Errorf("%w; check user, password, token, creds or nkey of the broker's URL; files are read again for each new connection", err)
	case errors.Is(err, nats.ErrTLS):
		return fmt.Errorf("%w; check tls-ca, tls-cert, tls-key and tls-server-name of the broker's URL", err)
	case errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("%w; check tls of the broker's URL", err)
	}
	return err
}

// unwelcome reports whether the server rejected our credentials.
func unwelcome(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired)
}

// Codes beside JetStream's numbers.
const (
	codePermission = "PERMISSION"  // the user may not publish to the subject, or not receive the answer: allow it
	codeMaxPayload = "MAX_PAYLOAD" // the message is above the server's max_payload: raise it, or claim large payloads
	codeBadSubject = "BAD_SUBJECT" // the topic is not a valid subject: use a route with a valid one
	codeNoStream   = "NO_STREAM"   // no stream takes the subject: add one
)

// denied returns an error if the server has refused publishing to subject since before.
// The server reports that on the connection, not as an answer to the message.
func denied(nc *nats.Conn, before error, subject string) error {
	last := violation(nc, `ublish to "`+subject+`"`)
	if last == nil || last == before { //nolint:errorlint // the same value is an old error
		return nil
	}
	return broker.Outage(fmt.Errorf("%w; allow this user to publish to it", last), codePermission, subject)
}

// deaf returns what the server said about an inbox that we may not listen to.
func deaf(nc *nats.Conn, inbox string) error {
	last := violation(nc, `ubscription to "`+inbox)
	if last == nil {
		return nil
	}
	prefix, _, _ := strings.Cut(inbox, ".")
	return fmt.Errorf("%w; allow this user to subscribe to %s.>", last, prefix)
}

// violation is what the server said last, if that is that we may not do what.
func violation(nc *nats.Conn, what string) error {
	last := nc.LastError()
	if last == nil || !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), what) {
		return nil
	}
	return last
}

// may adds to an error, of a question that has no answer, what this user may not
// do, where the server has said so: it says that of the connection.
func may(nc *nats.Conn, err error, fix string) error {
	if err == nil {
		return nil
	}
	for _, what := range []string{`ublish to "$JS.`, `ubscription to "`} {
		if last := violation(nc, what); last != nil {
			return fmt.Errorf("%w: %w; %s", err, last, fix)
		}
	}
	return err
}

// notConnected returns why there is no connection, as far as the client knows. Its error
// for a message is misleading then ("headers not supported").
func notConnected(nc *nats.Conn) error {
	if last := nc.LastError(); last != nil {
		return fmt.Errorf("not connected: %w", remedy(last))
	}
	return errors.New("not connected: no server answers at the URL's addresses")
}

// notPublished classifies an error of the client's publish call. Only errors from before
// its write mean that nothing was sent.
func notPublished(err error, subject string) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return broker.Rejected(err, codeMaxPayload, subject)
	case errors.Is(err, nats.ErrBadSubject):
		return broker.Rejected(err, codeBadSubject, subject)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrInvalidConnection),
		errors.Is(err, nats.ErrHeadersNotSupported):
		return broker.Outage(err, "", "")
	}
	return broker.Unknown(err, "", "")
}

// refused classifies a stream's error for a sent message.
func refused(err error, subject string) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return broker.Outage(fmt.Errorf("%w: %w; make one: nats stream add --subjects %q", errNoStream, err, subject), codeNoStream, subject)
	case errors.As(err, &api):
		code := strconv.Itoa(int(api.ErrorCode))
		if api.ErrorCode == codeMessageTooLarge || api.ErrorCode == codeHeadersTooLarge {
			return broker.Rejected(err, code, subject)
		}
		if api.Code == 429 || full(api) {
			return broker.Throttled(err, code, subject, 0)
		}
		return broker.Outage(err, code, subject)
	}
	return broker.Unknown(err, "", subject)
}
