package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/peer"
)

// Errors that the sink detects itself.
var (
	errNoStream = errors.New("the stream does not exist, and create=off")
	errTooLarge = errors.New("the message is too large")
	errNoAnswer = errors.New("the server's reply does not fit the command")
	errShort    = errors.New("not enough copies were confirmed in time")
)

// code returns the first word of an error reply if it is in capital letters.
func code(text string) string {
	word, _, _ := strings.Cut(text, " ")
	for _, c := range word {
		if (c < 'A' || c > 'Z') && c != '_' {
			return "ERR"
		}
	}
	return word
}

// cause returns why a transaction was not executed, if the reply to EXEC has the reason:
// "EXECABORT Transaction discarded because of: OOM command not allowed ...".
func cause(err error) string {
	text := err.Error()
	if _, why, ok := strings.Cut(text, "because of: "); ok {
		return why
	}
	return text
}

// refused classifies the reply to a command that was not executed. Only an
// error about one stream has a destination.
func refused(err error, stream string) error {
	text := cause(err)
	c := code(text)
	switch c {
	case "OOM":
		return broker.Throttled(fmt.Errorf("%w: the server is at its maxmemory; raise it, or let consumers delete what they have read", err), c, "", 0)
	case "WRONGTYPE":
		return broker.Outage(fmt.Errorf("%w: the key holds something that is not a stream", err), c, stream)
	case "NOPERM":
		return broker.Outage(fmt.Errorf("%w: give the user the command and the key by ACL SETUSER (+xadd +multi +exec ~%s)", err, stream), c, stream)
	case "NOAUTH", "WRONGPASS":
		return broker.Outage(fmt.Errorf("%w: set user and password in the broker's URL, or password-file", err), c, "")
	case "MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN":
		return broker.Outage(fmt.Errorf("%w: this is a node of Redis Cluster, which is not supported", err), c, "")
	}
	// READONLY (a replica), LOADING, MASTERDOWN, NOREPLICAS, MISCONF (the disk),
	// BUSY (a script) and all others: none of them is about one message, since all
	// commands have one form and their sizes were checked.
	return broker.Outage(err, c, "")
}

// withoutTransactions is the outage of a server that refuses MULTI or EXEC.
func withoutTransactions(err error) error {
	return broker.Outage(fmt.Errorf("%w: the sink needs transactions: give the user +multi and +exec by ACL SETUSER, and use no proxy that refuses them", err), code(err.Error()), "")
}

// elsewhere reports whether another server may be the primary, given an error's code.
func elsewhere(c string) bool {
	switch c {
	case "READONLY", "LOADING", "MASTERDOWN":
		return true
	}
	return false
}

// moved reports whether err means that another server may be the primary.
func moved(err error) bool {
	var unfit *unfitError
	var classified *broker.Error
	if errors.As(err, &classified) {
		return elsewhere(classified.Code)
	}
	return errors.As(err, &unfit) || elsewhere(code(cause(err)))
}

// lost classifies the error of a connection.
func lost(ctx context.Context, sent bool, err error) error {
	var unfit *unfitError
	switch {
	case errors.As(err, &unfit):
		return broker.Outage(unfit, unfit.code, "")
	case peer.Foreign(err): // the greeting comes before any message
		return broker.Outage(err, "", "")
	case isReply(err): // to the greeting: HELLO, AUTH, SELECT
		return refused(err, "")
	case sent:
		return broker.Unknown(err, "", "")
	case ctx.Err() != nil:
		return broker.Unknown(fmt.Errorf("not sent: %w", err), "", "")
	}
	return broker.Outage(err, "", "")
}
