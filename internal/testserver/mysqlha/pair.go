// Package mysqlha starts MySQL and MariaDB servers that replicate, for tests of failovers.
package mysqlha

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// Pair is a primary and a replica of it, by GTID and semi-synchronous: a commit is answered
// once the replica has it. Both start read-only, as servers of a pair should: a primary that was
// killed comes back as none.
type Pair struct {
	Primary, Replica *testserver.MySQL
	URL              string // of a database, with both hosts, as a user whom read_only binds

	database string
}

// StartPair starts both for one test, with an empty database.
func StartPair(tb testserver.TB, version string) *Pair {
	tb.Helper()
	p := &Pair{Primary: testserver.StartMySQL(tb, version, readOnlyAtStart(1, version)), database: "shop"}
	ctx := context.Background()
	if err := run(ctx, p.Primary, "set global read_only = 0", "create database shop", "create user app@'%' identified by 'word'",
		"grant all on shop.* to app@'%'", "grant process on *.* to app@'%'"); err != nil {
		tb.Fatalf("%v", err)
	}
	home, err := os.MkdirTemp(p.Primary.Dir, "replica")
	if err == nil {
		err = os.Chmod(home, 0o755)
	}
	if err == nil {
		err = p.Primary.Stop()
	}
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if err := copyData(p.Primary, home); err != nil {
		tb.Fatalf("%v", err)
	}
	if p.Replica, err = testserver.LaunchMySQL(ctx, version, home, readOnlyAtStart(2, version)); err != nil {
		tb.Fatalf("%v", err)
	}
	closeAtEnd(tb, p.Replica)
	p.URL = fmt.Sprintf("mysql://app:word@127.0.0.1:%d,127.0.0.1:%d/%s", p.Primary.Port, p.Replica.Port, p.database)
	if err := errors.Join(p.Primary.Restart(), run(ctx, p.Primary, "set global read_only = 0"), p.follow(ctx)); err != nil {
		tb.Fatalf("%v", err)
	}
	return p
}

func readOnlyAtStart(id int, version string) testserver.Option {
	lines := []string{fmt.Sprint("server-id=", id), "read_only=1", "log_slave_updates=1"}
	if version == testserver.MySQL9 {
		lines[2] = "log_replica_updates=1"
	}
	return testserver.WithConfig(lines...)
}

// copyData copies the data of a server that is stopped.
func copyData(from *testserver.MySQL, home string) error {
	to := filepath.Join(home, "data")
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(from.Dir, "data"), to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := os.Remove(filepath.Join(to, "auto.cnf")); !errors.Is(err, fs.ErrNotExist) { // its server_uuid
		return err
	}
	return nil
}

// run runs statements as root.
func run(ctx context.Context, m *testserver.MySQL, statements ...string) error {
	_, err := m.Query(ctx, "", strings.Join(statements, "; "))
	return err
}

// follow makes the replica one of the primary, and waits until a commit is answered by both.
func (p *Pair) follow(ctx context.Context) error {
	port := p.Primary.Port
	source, replica := []string{
		"install plugin rpl_semi_sync_source soname 'semisync_source.so'", "set global rpl_semi_sync_source_enabled = 1", "set global rpl_semi_sync_source_timeout = 600000",
	}, []string{
		"install plugin rpl_semi_sync_replica soname 'semisync_replica.so'", "set global rpl_semi_sync_replica_enabled = 1",
		fmt.Sprintf("change replication source to source_host = '127.0.0.1', source_port = %d, source_user = 'root', source_auto_position = 1, source_connect_retry = 1, get_source_public_key = 1", port),
		"start replica",
	}
	status := "show status like 'rpl_semi_sync_source_clients'"
	if maria(p.Primary) {
		source = []string{"set global rpl_semi_sync_master_wait_point = 'AFTER_SYNC'", "set global rpl_semi_sync_master_enabled = 1", "set global rpl_semi_sync_master_timeout = 600000"}
		replica = []string{
			"set global rpl_semi_sync_slave_enabled = 1", "set global gtid_slave_pos = @@global.gtid_binlog_pos",
			fmt.Sprintf("change master to master_host = '127.0.0.1', master_port = %d, master_user = 'root', master_use_gtid = slave_pos, master_connect_retry = 1", port),
			"start slave",
		}
		status = "show status like 'rpl_semi_sync_master_clients'"
	}
	for _, part := range []struct {
		on         *testserver.MySQL
		statements []string
	}{{p.Primary, source}, {p.Replica, replica}} {
		for _, statement := range part.statements {
			err := run(ctx, part.on, statement)
			if err != nil && !strings.Contains(err.Error(), "already exists") { // a plugin of before
				return err
			}
		}
	}
	return until(ctx, "the replica follows", func() (bool, error) {
		rows, err := p.Primary.Query(ctx, "", status)
		return err == nil && len(rows) == 1 && rows[0][1] == "1", err
	})
}

// CaughtUp waits until the replica has applied what the primary has committed.
func (p *Pair) CaughtUp(ctx context.Context) error {
	have, want := "select @@global.gtid_executed", "select gtid_subset('%s', @@global.gtid_executed)"
	if maria(p.Primary) {
		have, want = "select @@global.gtid_binlog_pos", "select @@global.gtid_slave_pos = '%[1]s' or @@global.gtid_binlog_pos = '%[1]s'"
	}
	rows, err := p.Primary.Query(ctx, "", have)
	if err != nil {
		return err
	}
	at := strings.ReplaceAll(rows[0][0], `\n`, "")
	return until(ctx, "the replica catches up", func() (bool, error) {
		rows, err := p.Replica.Query(ctx, "", fmt.Sprintf(want, at))
		return err == nil && rows[0][0] == "1", err
	})
}

// CutOff keeps the replica from receiving anything more, and lets the primary commit alone.
func (p *Pair) CutOff(ctx context.Context) error {
	stop, alone := "stop replica io_thread", "set global rpl_semi_sync_source_enabled = 0"
	if maria(p.Primary) {
		stop, alone = "stop slave io_thread", "set global rpl_semi_sync_master_enabled = 0"
	}
	return errors.Join(run(ctx, p.Replica, stop), run(ctx, p.Primary, alone))
}

// Promote makes the replica the primary once it has applied all that it has received. The old
// primary must be dead, or read-only.
func (p *Pair) Promote(ctx context.Context) error {
	threads := "select count(*) from information_schema.processlist where user = 'system user' and state like '%read all relay log%'"
	io, all := "stop replica io_thread", []string{"stop replica", "reset replica all", "set global read_only = 0"}
	if maria(p.Replica) {
		io, all = "stop slave io_thread", []string{"stop slave", "reset slave all", "set global read_only = 0"}
	}
	if err := run(ctx, p.Replica, io); err != nil {
		return err
	}
	err := until(ctx, "the replica applies its relay log", func() (bool, error) {
		rows, err := p.Replica.Query(ctx, "", threads)
		return err == nil && rows[0][0] != "0", err
	})
	if err == nil {
		err = run(ctx, p.Replica, all...)
	}
	if err == nil {
		p.Primary, p.Replica = p.Replica, p.Primary
	}
	return err
}

// Rebuild makes the old primary a replica of the new one, from a copy of its data: it may have
// commits that were never answered. The old one must be dead; the new one is stopped for that.
func (p *Pair) Rebuild(ctx context.Context) error {
	if err := p.Primary.Stop(); err != nil {
		return err
	}
	if err := copyData(p.Primary, p.Replica.Dir); err != nil {
		return err
	}
	return errors.Join(p.Primary.Restart(), p.Replica.Restart(), run(ctx, p.Primary, "set global read_only = 0"), p.follow(ctx))
}

// until waits for a condition; an error is kept for the case that it never comes.
func until(ctx context.Context, what string, met func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		ok, err := met()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testserver: waiting until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-poll.C:
		}
	}
}

func maria(m *testserver.MySQL) bool { return strings.HasPrefix(m.Version, "mariadb-") }

func closeAtEnd(tb testserver.TB, m *testserver.MySQL) {
	tb.Cleanup(func() {
		if err := m.Close(); err != nil {
			tb.Logf("%v", err)
		}
	})
}
