package mysqlstore

import (
	"context"

	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// The words of room db that tests use beside variables of its name.
type querier = db.Querier

const (
	now            = db.Now
	errTableDenied = db.ErrTableDenied
	unreadable     = db.Unreadable
)

var (
	again = db.Again
	code  = db.Code
)

func list[T any](ctx context.Context, q querier, query string, args ...any) ([]T, error) {
	return db.List[T](ctx, q, query, args...)
}
