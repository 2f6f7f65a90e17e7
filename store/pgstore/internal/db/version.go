package db

import (
	"context"
)

// Version is the schema version that this package makes and needs. It also works with a
// newer schema that declares itself compatible: a migration begins with the line
// "-- compatible: N", where N is the oldest Version whose programs work beside it.
const Version = 19

// Found is the present version of the schema.
type Found struct {
	Version    int // 0: none
	Compatible int // the oldest Version that works with it
}

// Fits reports whether this program works with the schema: its version is the one
// that the program creates, or a newer one that declares itself compatible. An older
// schema lacks what newer programs use: a rolling upgrade migrates first.
func (f Found) Fits() bool { return f.Version == Version || f.Newer() }

// Newer reports whether the schema is newer than this program, which still works with it.
func (f Found) Newer() bool { return f.Version > Version && f.Compatible <= Version }

// Found is the present version of the schema.
func (o *Outbox) Found(ctx context.Context, q Querier) (f Found, err error) {
	var exists bool
	if err = q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, Quote(o.Schema)+".migration").Scan(&exists); err != nil {
		return f, o.Wrap("look for the schema", err)
	}
	if !exists {
		return f, nil
	}
	if err = q.QueryRow(ctx, o.Render(`SELECT `+Applied)).Scan(&f.Version, &f.Compatible); err != nil {
		return f, o.Wrap("read the schema version", err)
	}
	return f, nil
}
