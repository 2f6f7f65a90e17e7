package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/ops"
)

// mySQL is a MySQL or MariaDB server.
type mySQL struct {
	server  *testserver.MySQL
	version string
	db      *sql.DB
}

var _ Database = (*mySQL)(nil)

const mysqlSchema = "bench"

// startMySQL starts a server with the memory that the benchmark's PostgreSQL has. Its log is
// durable and its binlog as by default, all columns of each row.
func startMySQL(ctx context.Context, name string) (_ *mySQL, err error) {
	redo := "innodb-redo-log-capacity=2G"
	if strings.HasPrefix(name, "mariadb-") {
		redo = "innodb-log-file-size=2G"
	}
	server, err := testserver.LaunchMySQL(ctx, name, "", testserver.Durable(), testserver.WithConfig("innodb-buffer-pool-size=1G", "innodb-log-buffer-size=16M", redo))
	if err != nil {
		return nil, err
	}
	m := &mySQL{server: server}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if _, err := server.Query(ctx, "", "create database "+mysqlSchema); err != nil {
		return nil, err
	}
	if m.db, err = mysqlstore.OpenDB(server.DatabaseURL(mysqlSchema), nil); err != nil {
		return nil, err
	}
	m.db.SetMaxIdleConns(32)
	if err := m.db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&m.version); err != nil {
		return nil, err
	}
	if _, err := mysqlstore.New(m.db, nil).Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		return nil, fmt.Errorf("make the outbox: %w", err)
	}
	return m, nil
}

func (m *mySQL) Close() {
	if m.db != nil {
		_ = m.db.Close()
	}
	_ = m.server.Close()
}

func (m *mySQL) Server() Server {
	return Server{m.server.Version, "mysql", m.version, m.server.DatabaseURL(mysqlSchema), m.server.PID}
}

// Sample implements Meter. The binlog is the sum of its files; none is removed meanwhile.
func (m *mySQL) Sample(ctx context.Context) (Sample, error) {
	var statements, redo int64
	for name, into := range map[string]*int64{"Questions": &statements, "Innodb_os_log_written": &redo} {
		var ignored string
		if err := m.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&ignored, into); err != nil {
			return Sample{}, fmt.Errorf("read %s: %w", name, err)
		}
	}
	binlog, err := m.binlog(ctx)
	return Sample{Statements: &statements, Redo: &redo, Binlog: &binlog}, err
}

func (m *mySQL) binlog(ctx context.Context) (sum int64, err error) {
	files, err := m.db.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return 0, err
	}
	defer files.Close()
	columns, err := files.Columns()
	if err != nil {
		return 0, err
	}
	var size int64
	into := make([]any, len(columns)) // MySQL has a third one
	for i := range into {
		into[i] = new(sql.RawBytes)
	}
	into[1] = &size
	for files.Next() {
		if err := files.Scan(into...); err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, files.Err()
}

// Fill implements Backlog. Statements of VALUES draw as many numbers as they have rows.
func (m *mySQL) Fill(ctx context.Context, topic string, n int) error {
	const rowsOfOne = 500
	insert := "INSERT INTO postrider_outbox (topic, `key`, type, payload) VALUES "
	for from := 0; from < n; from += rowsOfOne {
		count := min(rowsOfOne, n-from)
		args := make([]any, 0, 4*count)
		for i := from; i < from+count; i++ {
			args = append(args, topic, rows.Key(nil, i), eventType, rows.Payload(nil, i))
		}
		if _, err := m.db.ExecContext(ctx, insert+strings.Repeat("(?,?,?,?),", count-1)+"(?,?,?,?)", args...); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	if _, err := m.db.ExecContext(ctx, "ANALYZE TABLE postrider_outbox"); err != nil {
		return fmt.Errorf("analyze the outbox: %w", err)
	}
	return m.flushed(ctx)
}

// flushed waits until the pages that were written are in their files, as after a CHECKPOINT:
// the server would do it during the first drain.
func (m *mySQL) flushed(ctx context.Context) error {
	var share, low float64
	if err := m.db.QueryRowContext(ctx, "SELECT @@innodb_max_dirty_pages_pct, @@innodb_max_dirty_pages_pct_lwm").Scan(&share, &low); err != nil {
		return err
	}
	set := func(ctx context.Context, share, low float64) error {
		_, err := m.db.ExecContext(ctx, fmt.Sprintf("SET GLOBAL innodb_max_dirty_pages_pct_lwm = %g, GLOBAL innodb_max_dirty_pages_pct = %g", low, share))
		return err
	}
	if err := set(ctx, 0, 0); err != nil {
		return fmt.Errorf("flush the outbox: %w", err)
	}
	const few, patience = 100, time.Minute
	for end := time.Now().Add(patience); ; {
		var name string
		var dirty int
		if err := m.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'").Scan(&name, &dirty); err != nil {
			return err
		}
		if dirty < few {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("flush the outbox: %d pages are dirty after %v", dirty, patience)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.Join(set(ctx, share, 0), set(ctx, share, low))
}

// Rewind implements Backlog.
func (m *mySQL) Rewind(ctx context.Context) error {
	for _, query := range []string{"UPDATE postrider_progress SET pos = 0, holes = '[]', delivered = 0", "DELETE FROM postrider_dropped"} {
		if _, err := m.db.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("rewind: %w", err)
		}
	}
	return nil
}

// Owned implements Backlog.
func (m *mySQL) Owned(ctx context.Context) error {
	var free int
	err := m.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM postrider_progress p WHERE NOT EXISTS (SELECT 1 FROM postrider_relay r WHERE r.boot_id = p.owner)").Scan(&free)
	if err == nil && free > 0 {
		err = fmt.Errorf("%d lanes have no owner", free)
	}
	return err
}

// Wake implements Writer.
func (m *mySQL) Wake(_ context.Context, how string) (url string, err error) {
	if how == "poll" {
		return m.server.DatabaseURL(mysqlSchema), nil
	}
	return "", fmt.Errorf("--wake %s is PostgreSQL's alone: use --wake poll with --store %s", how, m.server.Version)
}

// Outbox implements Writer.
func (m *mySQL) Outbox() string { return "postrider_outbox" }

// Twin implements Writer.
func (m *mySQL) Twin(ctx context.Context) (string, error) {
	_, err := m.db.ExecContext(ctx, "CREATE TABLE bench_direct LIKE postrider_outbox")
	return "bench_direct", err
}

// Insert implements Writer.
func (m *mySQL) Insert(table, topic string) func(ctx context.Context, i int) error {
	insert := "INSERT INTO " + table + " (topic, `key`, type, payload) VALUES ('" + topic + "', ?, 'bench.event', ?)"
	return func(ctx context.Context, i int) error {
		_, err := m.db.ExecContext(ctx, insert, string(rows.Key(nil, i)), rows.Payload(nil, i))
		return err
	}
}

func mysqlStore(_ context.Context, url string) (store.Store, func(), error) {
	st, err := mysqlstore.Open(url, nil)
	if err != nil {
		return nil, nil, err
	}
	return st, func() { _ = st.Close() }, nil
}

// mysqlReadAll reads the table by number, which is how it is stored.
func mysqlReadAll(ctx context.Context, url string) (time.Duration, error) {
	db, err := mysqlstore.OpenDB(url, nil)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	start := time.Now()
	all, err := db.QueryContext(ctx, "SELECT seq, lane, id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at FROM postrider_outbox ORDER BY seq")
	if err != nil {
		return 0, err
	}
	defer all.Close()
	for all.Next() { // the driver has cut the row into columns; nobody looks at them
	}
	return time.Since(start), all.Err()
}
