package open

import (
	"context"
	"database/sql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/mysqlstore"
)

func mysqlKind() kind {
	return kind{schemes: []string{"mysql", "mariadb"}, form: "mysql://USER@HOST/DATABASE", store: openMySQL}
}

func openMySQL(set *Settings, _ string) (*Outbox, error) {
	ask, err := set.password()
	if err != nil {
		return nil, err
	}
	db, err := mysqlstore.OpenDB(set.Store, ask)
	if err != nil {
		return nil, exit.Usagef("store %s cannot be used: %w", redact.Place(set.Store), err)
	}
	st := mysqlstore.New(db, &mysqlstore.Options{Pipe: set.Pipe, MakePipe: set.MakePipe})
	ob := outbox.New(dialect.MySQL, nil)
	return &Outbox{
		Store: st, Office: st.Office(),
		Inbox:   func() (*sql.DB, dialect.Dialect) { return db, dialect.MySQL },
		Close:   func() { _ = db.Close() },
		Enqueue: func(ctx context.Context, msgs []postrider.Message) error { return enqueueSQL(ctx, db, ob, msgs) },
	}, nil
}
