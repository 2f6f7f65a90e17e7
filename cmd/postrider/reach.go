package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store"
)

// reachTimeout bounds the first answer of a server to commands that a person waits for.
const reachTimeout = 10 * time.Second

// missingError says that there is no database where an outbox was expected.
type missingError struct{ text string }

func (e *missingError) Error() string { return e.text }

// Is makes errors.Is(err, store.ErrSchema) true: the remedy is the same.
func (e *missingError) Is(target error) bool { return target == store.ErrSchema }

// reach asks the database which schema it holds. An error is a
// [store.ErrUnusable] where a person must act, and an *unreachableError where
// the database did not answer.
func reach(ctx context.Context, st *opened) (have, want int, err error) {
	limited, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	have, want, err = st.SchemaVersion(limited)
	var (
		connect *pgconn.ConnectError
		answer  *pgconn.PgError
	)
	switch {
	case err == nil, errors.Is(err, store.ErrUnusable), errors.Is(err, store.ErrSchema):
		return have, want, err
	case ctx.Err() != nil:
		return have, want, errors.New("interrupted")
	case errors.As(err, &connect):
		err = errors.New(redact.OneLine(connect.Error()) + certificateHint(connect))
	case errors.As(err, &answer):
		return have, want, fmt.Errorf("find the schema's version: %w", err)
	case limited.Err() != nil:
		err = fmt.Errorf("no answer within %s", reachTimeout)
	}
	return have, want, &unreachableError{fmt.Errorf("the database cannot be reached: %w; check --store and that it is up", err)}
}

// certificateHint is about a server that ends a connection with our client
// certificate without a word: in TLS 1.3 it refuses one after we have begun to
// speak, and its reason can be lost with the connection.
func certificateHint(err *pgconn.ConnectError) string {
	ended := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if c := err.Config; !ended || c == nil || c.TLSConfig == nil || len(c.TLSConfig.Certificates) == 0 {
		return ""
	}
	return " (the server may have refused our client certificate)"
}

// ready asks whether the database answers and holds a schema that this program knows.
func ready(ctx context.Context, st *opened, schema string) error {
	if st.exists != nil {
		if err := st.exists(); err != nil {
			return err
		}
	}
	have, want, err := reach(ctx, st)
	if err != nil {
		return err
	}
	if have != want {
		return &store.SchemaError{Schema: schema, Have: have, Want: want}
	}
	return nil
}
