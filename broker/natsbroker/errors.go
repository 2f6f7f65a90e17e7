package natsbroker

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// Error codes of a stream that are about one message.
const (
	codeMessageTooLarge = 10054
	codeHeadersTooLarge = 10097
)

// notConnected says why there is no connection, where the client knows. What it
// says of a message then is beside the point ("headers not supported").
func notConnected(nc *nats.Conn) error {
	if last := nc.LastError(); last != nil {
		return fmt.Errorf("not connected: %w", last)
	}
	return errors.New("not connected: no server answers at the URL's addresses")
}

// notPublished classifies an error of the client's publishing. Only those that
// it gives before it writes mean that nothing was sent.
func notPublished(err error, subject string) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return broker.Rejected(err, "MAX_PAYLOAD", subject)
	case errors.Is(err, nats.ErrBadSubject):
		return broker.Rejected(err, "BAD_SUBJECT", subject)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrInvalidConnection),
		errors.Is(err, nats.ErrHeadersNotSupported), errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		return broker.Outage(err, "", "")
	}
	return broker.Unknown(err, "", "")
}

// refused classifies the answer to a message that was sent.
func refused(err error, subject string) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return broker.Outage(fmt.Errorf("no stream takes the subject: %w", err), "NO_STREAM", subject)
	case errors.As(err, &api):
		code := strconv.Itoa(int(api.ErrorCode))
		if api.ErrorCode == codeMessageTooLarge || api.ErrorCode == codeHeadersTooLarge {
			return broker.Rejected(err, code, subject)
		}
		if api.Code == 429 {
			return broker.Throttled(err, code, subject, 0)
		}
		return broker.Outage(err, code, subject)
	}
	return broker.Unknown(err, "", subject)
}
