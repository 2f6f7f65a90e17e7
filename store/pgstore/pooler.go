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

// pooler detects a pooler in front of the server, before the
// first connection of a pool is made.
type pooler struct {
	turn   chan struct{} // held while asking
	known  bool
	stands bool
}

func newPooler() *pooler { return &pooler{turn: make(chan struct{}, 1)} }

// beforeConnect makes a connection through a pooler prepare
// nothing under a name. Its error is an error of connecting.
func (p *pooler) beforeConnect(ctx context.Context, cc *pgx.ConnConfig) error {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.turn }()
	if !p.known {
		stands, err := behindPooler(ctx, cc.Copy())
		if err != nil {
			return err
		}
		p.known, p.stands = true, stands
	}
	if p.stands {
		cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return nil
}

// behindPooler compares the process id announced at the start of the connection with
// that of the answering process: a pooler invents the former.
func behindPooler(ctx context.Context, cc *pgx.ConnConfig) (bool, error) {
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // it was used to ask, and has answered
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return false, err
	}
	return pid != conn.PgConn().PID(), nil
}
