package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// pair is a primary and a synchronous standby: a promotion loses no commit that a writer
// knows of.
type pair struct {
	primary, standby *testserver.Postgres
	url              string // of the server that takes writes
}

func openPair(ctx context.Context, version string) (p *pair, err error) {
	p = &pair{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.primary, err = testserver.LaunchPostgres(ctx, version, "", testserver.Durable()); err != nil {
		return p, err
	}
	if err = p.primary.Stop(); err != nil { // a cold copy needs no client tools
		return p, err
	}
	home := filepath.Join(p.primary.Dir, "standby")
	if err = os.Mkdir(home, 0o755); err != nil {
		return p, err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(p.primary.Dir, "data"), home).CombinedOutput(); err != nil {
		return p, fmt.Errorf("%w: %s", err, out)
	}
	if err = os.WriteFile(filepath.Join(home, "data", "standby.signal"), nil, 0o644); err != nil {
		return p, err
	}
	if err = p.primary.Restart(); err != nil {
		return p, err
	}
	p.standby, err = testserver.LaunchPostgres(ctx, version, home, testserver.Durable(), testserver.WithConfig(
		fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=standby'", p.primary.Port),
		"wal_retrieve_retry_interval = 100ms"))
	if err != nil {
		return p, err
	}
	for _, text := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()"} {
		if _, err = p.primary.Query(ctx, "postgres", text); err != nil {
			return p, err
		}
	}
	p.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=3",
		p.primary.Port, p.standby.Port)
	return p, p.inStep(ctx)
}

// inStep waits until the standby is synchronous.
func (p *pair) inStep(ctx context.Context) error {
	return poll(ctx, 30*time.Second, func() bool {
		rows, err := p.primary.Query(ctx, "postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
		return err == nil && rows[0][0] == "1"
	})
}

// crash ends the primary as a power cut would, and restarts it.
func (p *pair) crash() error {
	if err := p.primary.Kill(); err != nil {
		return err
	}
	return p.primary.Restart()
}

// promote kills the primary for ever and promotes the standby.
func (p *pair) promote(ctx context.Context) error {
	if err := p.inStep(ctx); err != nil {
		return fmt.Errorf("the standby is not synchronous: %w", err)
	}
	if err := p.primary.Kill(); err != nil {
		return err
	}
	_, err := p.standby.Query(ctx, "postgres", "SELECT pg_promote()")
	return err
}

func (p *pair) close() {
	if p.standby != nil {
		_ = p.standby.Close()
	}
	if p.primary != nil {
		_ = p.primary.Close()
	}
}
