package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A pooler that shares one server session between many clients, transaction by
// transaction, mixes up statements that they have prepared under the same name.
// Behind a pooler, statements are sent without a name, and the server parses them each
// time. Nothing else here depends on a session.

// statement is a text to be sent in a pipeline.
type statement struct{ sql, name string }

// namelessKey is the key under which a connection caches the result of nameless, because
// reading its configuration copies it.
const namelessKey = "postrider.nameless"

// nameless reports whether the connection was told to prepare nothing under a
// name (default_query_exec_mode of the connection string).
func (r *reader) nameless() bool {
	data := r.conn.PgConn().CustomData()
	if known, ok := data[namelessKey].(bool); ok {
		return known
	}
	mode := r.conn.Config().DefaultQueryExecMode
	nameless := mode != pgx.QueryExecModeCacheStatement
	data[namelessKey] = nameless
	return nameless
}

func (r *reader) prepare(ctx context.Context, sql string) (statement, error) {
	if r.nameless() {
		return statement{sql: sql}, nil
	}
	sd, err := r.conn.Prepare(ctx, sql, sql)
	if err != nil {
		return statement{}, err
	}
	return statement{sql: sql, name: sd.Name}, nil
}

func (s statement) send(p *pgconn.Pipeline, params [][]byte, formats []int16) {
	if s.name == "" {
		p.SendQueryParams(s.sql, params, nil, nil, formats)
		return
	}
	p.SendQueryPrepared(s.name, params, nil, formats)
}
