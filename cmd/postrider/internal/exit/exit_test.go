package exit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/store"
)

// Where relays of a process failed for several reasons, the code is that of the mistake a person must repair.
func TestOf(t *testing.T) {
	lag, away := With(Lag, errors.New("x")), Withf(Unreachable, "no answer: %w", errors.New("x"))
	for _, tc := range []struct {
		err  error
		want Code
	}{
		{nil, OK},
		{errors.New("x"), Failure},
		{Usagef("x"), Usage},
		{&config.Error{What: "x"}, Usage},
		{lag, Lag},
		{away, Unreachable},
		{&pgconn.ConnectError{}, Unreachable},
		{fmt.Errorf("y: %w", With(Findings, errors.New("x"))), Findings},
		{&store.SchemaError{}, Schema},
		{&store.UnusableError{Err: errors.New("x")}, Usage},
		{&store.UnusableError{Err: errors.New("x"), Passing: true}, Unreachable},
		{errors.Join(away, &store.SchemaError{}), Schema},
		{errors.Join(away, lag, Usagef("x")), Usage},
	} {
		if got := Of(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
	if got := away.Error(); got != "no answer: x" {
		t.Errorf("a code changed the text: %q", got)
	}
}
