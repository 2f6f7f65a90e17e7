package open

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/internal/peer"
	"github.com/postrider/postrider/store"
)

// Timeout bounds the first answer of a server to commands that a person waits for.
const Timeout = 10 * time.Second

// missingError says that there is no database where an outbox was expected.
type missingError struct{ text string }

func (e *missingError) Error() string { return e.text }

// Is makes errors.Is(err, store.ErrSchema) true: the remedy is the same.
func (e *missingError) Is(target error) bool { return target == store.ErrSchema }

// Reach asks the database which schema it holds. An error is a
// *store.UnusableError if the database rejects the relay, and an
// exit.Unreachable error if it cannot be used for now.
func Reach(ctx context.Context, st *Outbox) (have, want int, err error) {
	limited, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	have, want, err = st.Migrator.SchemaVersion(limited)
	var (
		connect  *pgconn.ConnectError
		answer   *pgconn.PgError
		unusable *store.UnusableError
		other    *peer.Error
	)
	switch {
	case err == nil, errors.As(err, &unusable), errors.Is(err, store.ErrSchema):
		return have, want, err
	case ctx.Err() != nil:
		return have, want, errors.New("interrupted")
	case errors.As(err, &connect) && errors.As(err, &answer):
		return have, want, turnedAway(answer)
	case errors.As(err, &other):
		err = other
	case errors.As(err, &connect):
		err = errors.New(redact.OneLine(connect.Error()) + certificateHint(connect))
	case errors.As(err, &answer):
		return have, want, fmt.Errorf("find the schema's version: %w", err)
	case limited.Err() != nil:
		err = fmt.Errorf("no answer within %s", Timeout)
	}
	return have, want, exit.Withf(exit.Unreachable, "the database cannot be reached: %w; check --store and that it is up", err)
}

// turnedAway is the error of a server that answers and takes no connection for now.
func turnedAway(answer *pgconn.PgError) error {
	what, fix := "the database takes no connections", "try again"
	switch answer.Code {
	case "53300":
		what, fix = "the database has too many connections", "end idle ones, make pools smaller (pool_max_conns in --store) or raise max_connections, then try again"
	case "57P03":
		what, fix = "the database is starting up, shutting down or recovering", "try again in a moment"
	}
	return exit.Withf(exit.Unreachable, "%s: %w; %s", what, answer, fix)
}

// LostConnection reports whether the connection to the database ended in the middle of
// what was asked, or could not be made.
func LostConnection(err error) bool {
	var (
		answer  *pgconn.PgError
		connect *pgconn.ConnectError
		network net.Error
	)
	if errors.As(err, &answer) {
		return slices.Contains([]string{"57P01", "57P02", "57P03", "57P05", "53300"}, answer.Code) || strings.HasPrefix(answer.Code, "08")
	}
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// certificateHint is about a server that ends a connection with our client
// certificate silently: in TLS 1.3 it refuses one after we have begun to
// speak, and its reason can be lost with the connection.
func certificateHint(err *pgconn.ConnectError) string {
	ended := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if c := err.Config; !ended || c == nil || c.TLSConfig == nil || len(c.TLSConfig.Certificates) == 0 {
		return ""
	}
	return " (the server may have refused our client certificate)"
}

// Ready asks whether the database answers and holds a schema that this program knows.
func Ready(ctx context.Context, st *Outbox, schema string) error {
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			return err
		}
	}
	have, want, err := Reach(ctx, st)
	if err != nil {
		return err
	}
	if have != want {
		return &store.SchemaError{Schema: schema, Have: have, Want: want}
	}
	return nil
}
