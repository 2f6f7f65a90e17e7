package consumer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// silent is a pgx pool and a transaction of a server that stopped to answer: nothing
// ends a rollback but its context.
type silent struct{}

var errSilent = errors.New("the server does not answer")

func (silent) Begin(context.Context) (silent, error)                  { return silent{}, nil }
func (silent) Exec(context.Context, string, ...any) (affected, error) { return 0, errSilent }
func (silent) QueryRow(context.Context, string, ...any) silent        { return silent{} }
func (silent) Scan(...any) error                                      { return errSilent }
func (silent) Commit(context.Context) error                           { return errSilent }
func (silent) Rollback(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

type affected int64

func (a affected) RowsAffected() int64 { return int64(a) }

// TestRollbackHasAnEnd: a server that no longer answers does not hold the caller of a
// transaction, nor a consumer's slot, until TCP gives up.
//
// Promises: S
func TestRollbackHasAnEnd(t *testing.T) {
	in := inbox.New(dialect.Postgres, "c", nil)
	m := postrider.Message{ID: "1", Topic: "t"}
	for name, call := range map[string]func(context.Context) error{
		"Transact": func(ctx context.Context) error {
			return Pgx[silent](silent{}).Transact(ctx, func(silent, inbox.Conn) error { return errSilent })
		},
		"OncePgx": func(ctx context.Context) error {
			return inbox.OncePgx(ctx, in, silent{}, m, func(silent) error { return nil })
		},
		"OnceBatchPgx": func(ctx context.Context) error {
			return inbox.OnceBatchPgx(ctx, in, silent{}, []postrider.Message{m}, func(silent, []postrider.Message) error { return nil })
		},
		"OnceResultPgx": func(ctx context.Context) error {
			_, _, err := inbox.OnceResultPgx(ctx, in, silent{}, m, func(silent) ([]byte, error) { return nil, nil })
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now() // in the bubble
			if err := call(ctx); !errors.Is(err, errSilent) || time.Since(began) > 10*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		})
	}
}
