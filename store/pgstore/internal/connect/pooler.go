package connect

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooler detects a pooler in front of the server, before the
// first connection of a pool is made.
type pooler struct {
	turn   chan struct{} // held while asking
	known  bool
	stands bool
}

// DetectPooler makes the pools of cfg prepare nothing under a name if the server is behind a
// pooler. Call it before the pool is made.
func DetectPooler(cfg *pgxpool.Config) {
	p := &pooler{turn: make(chan struct{}, 1)}
	cfg.BeforeConnect = p.beforeConnect
}

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

// answerTime is how long the first question may take where the connection string has no connect_timeout.
const answerTime = 5 * time.Second

// behindPooler compares the process id announced at the start of the connection with
// that of the answering process: a pooler invents the former.
func behindPooler(ctx context.Context, cc *pgx.ConnConfig) (bool, error) {
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // it was used to ask, and has answered
	// A pool connects without the deadline of who asks for a connection. All its connections wait for this one.
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(cc.ConnectTimeout, answerTime))
	defer cancel()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return false, err
	}
	return pid != conn.PgConn().PID(), nil
}
