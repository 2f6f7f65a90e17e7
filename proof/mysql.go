package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/internal/testserver"
)

// mysqlOrigin is an outbox in MySQL or MariaDB with hostile writers: numbers come to be
// visible late, in another order, or never.
type mysqlOrigin struct {
	server *testserver.MySQL
	db     *sql.DB
}

func openMySQL(ctx context.Context, version string) (*mysqlOrigin, error) {
	server, err := testserver.LaunchMySQL(ctx, version, "", testserver.Durable())
	if err != nil {
		return nil, err
	}
	if _, err := server.Query(ctx, "", "create database proof"); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	conf := mysql.NewConfig()
	conf.User, conf.Net, conf.Addr, conf.DBName = "root", "tcp", fmt.Sprintf("127.0.0.1:%d", server.Port), "proof"
	conf.InterpolateParams, conf.Logger = true, &mysql.NopLogger{}
	conf.Params = map[string]string{"innodb_lock_wait_timeout": "2"}
	connector, err := mysql.NewConnector(conf)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	return &mysqlOrigin{server, db}, nil
}

func (o *mysqlOrigin) url() string { return o.server.DatabaseURL("proof") }

func (o *mysqlOrigin) close() { _, _ = o.db.Close(), o.server.Close() }

// killStore kills the server and restarts it on the same files.
func (o *mysqlOrigin) killStore() error {
	if err := o.server.Kill(); err != nil {
		return err
	}
	return o.server.Restart()
}

// numbersUpTo is a table n of the numbers 0 to 4095.
const numbersUpTo = `(WITH RECURSIVE r (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 63) SELECT a.i * 64 + b.i AS n FROM r AS a JOIN r AS b) AS g`

// fromTruth writes the newest version of some keys. %s: an expression that is true.
const fromTruth = "INSERT INTO postrider_outbox (topic, `key`, type, payload, version)" +
	" SELECT '" + topic + "', k, 'proof.event', CONCAT(k, ':', version, ':', REPEAT('x', 180)), version FROM truth WHERE %s AND k IN (%s) ORDER BY k"

func (o *mysqlOrigin) backlog(ctx context.Context, n int) error {
	for _, query := range []string{
		`CREATE TABLE truth (k VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, version INT NOT NULL) ENGINE=InnoDB`,
		`INSERT INTO truth SELECT CONCAT('k', g.n), 0 FROM ` + numbersUpTo,
	} {
		if _, err := o.db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	for done := 0; done < n; done += keyCount {
		tx, err := o.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE truth SET version = version + 1`)
		if err == nil {
			_, err = tx.ExecContext(ctx, fmt.Sprintf(fromTruth, "TRUE", "SELECT k FROM truth"))
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// write runs writers until stop is closed and returns how many transactions ended without
// a commit. A writer whose server is away tries again.
func (o *mysqlOrigin) write(ctx context.Context, writers, perSecond int, stop <-chan struct{}) (int, error) {
	turns, end := pace(perSecond)
	defer end()
	var wg sync.WaitGroup
	var undone atomic.Int64
	failed := make(chan error, writers)
	for w := range writers {
		wg.Go(func() {
			h := &hostile{o: o, rnd: rand.New(rand.NewPCG(uint64(w), 7)), name: fmt.Sprintf("w%d", w)}
			for {
				select {
				case <-stop:
					return
				case <-ctx.Done():
					return
				case <-turns:
				}
				err := h.one(ctx)
				switch {
				case err == nil:
				case errors.Is(err, errUndone), passing(err) && answered(err):
					undone.Add(1)
				case passing(err): // the server is away
					if pause(ctx, 50*time.Millisecond) != nil {
						return
					}
				default:
					failed <- fmt.Errorf("writer %d: %w", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := o.endPrepared(ctx); err != nil {
		return 0, err
	}
	select {
	case err := <-failed:
		return 0, err
	default:
		return int(undone.Load()), nil
	}
}

var errUndone = errors.New("rolled back")

// passing reports a deadlock, a lock that was waited for too long, or a server that is away.
func passing(err error) bool {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		switch e.Number {
		case 1205, 1213, 1020, 1053, 1158, 1159, 1160, 1161, 1614, 1402: // the last two: XA was rolled back
			return true
		}
		return false
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "connection reset") || strings.Contains(err.Error(), "broken pipe")
}

// answered reports whether the error is an answer of the server.
func answered(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e)
}

// hostile is one writer.
type hostile struct {
	o    *mysqlOrigin
	rnd  *rand.Rand
	name string
	n    int
}

// keys are some keys in ascending order: writers seldom deadlock.
func (h *hostile) keys(most int) string {
	n := 1 + h.rnd.IntN(most)
	first := h.rnd.IntN(keyCount - n)
	quoted := make([]string, n)
	for i := range quoted {
		quoted[i] = fmt.Sprintf("'k%d'", first+i)
	}
	return strings.Join(quoted, ",")
}

// execer is a connection or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// put numbers and writes one message of each key.
func (h *hostile) put(ctx context.Context, q execer, keys, condition string) error {
	if _, err := q.ExecContext(ctx, `UPDATE truth SET version = version + 1 WHERE k IN (`+keys+`)`); err != nil {
		return err
	}
	_, err := q.ExecContext(ctx, fmt.Sprintf(fromTruth, condition, keys))
	return err
}

// one runs one transaction.
func (h *hostile) one(ctx context.Context) error {
	if h.rnd.IntN(10) == 0 {
		return h.xa(ctx)
	}
	level := []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelSerializable}[h.rnd.IntN(3)]
	tx, err := h.o.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := h.fill(ctx, tx); err != nil {
		_ = tx.Rollback() // the first error is what matters
		return err
	}
	if h.rnd.IntN(8) == 0 {
		return errors.Join(tx.Rollback(), errUndone)
	}
	return tx.Commit()
}

func (h *hostile) fill(ctx context.Context, tx *sql.Tx) error {
	sleep := func(most float64) error {
		_, err := tx.ExecContext(ctx, `DO SLEEP(?)`, h.rnd.Float64()*most)
		return err
	}
	switch h.rnd.IntN(6) {
	case 0: // an old transaction
		if _, err := tx.ExecContext(ctx, `DO (SELECT COUNT(*) FROM truth WHERE k = 'k0')`); err != nil {
			return err
		}
		return errors.Join(sleep(0.02), h.put(ctx, tx, h.keys(8), "TRUE"))
	case 1: // part of it is rolled back
		if _, err := tx.ExecContext(ctx, `SAVEPOINT a`); err != nil {
			return err
		}
		keys := h.keys(4)
		if err := h.put(ctx, tx, keys, "TRUE"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT a`); err != nil {
			return err
		}
		return h.put(ctx, tx, keys, "TRUE")
	case 2: // a late commit
		if err := h.put(ctx, tx, h.keys(8), "TRUE"); err != nil {
			return err
		}
		return sleep(0.05)
	case 3: // numbers are drawn long before their rows are there
		return h.put(ctx, tx, h.keys(16), fmt.Sprintf("SLEEP(%f) = 0", h.rnd.Float64()*0.005))
	case 4: // many
		return h.put(ctx, tx, h.keys(200), "TRUE")
	}
	return h.put(ctx, tx, h.keys(2), "TRUE")
}

// xa is prepared by one session and ended by another.
func (h *hostile) xa(ctx context.Context) error {
	h.n++
	id := fmt.Sprintf("'%s-%d'", h.name, h.n)
	conn, err := h.o.db.Conn(ctx)
	if err != nil {
		return err
	}
	var session int64
	err = conn.QueryRowContext(ctx, `SELECT CONNECTION_ID()`).Scan(&session)
	if err == nil {
		_, err = conn.ExecContext(ctx, "XA START "+id)
	}
	if err == nil {
		err = h.put(ctx, conn, h.keys(3), "TRUE")
	}
	for _, query := range []string{"XA END ", "XA PREPARE "} {
		if err == nil {
			_, err = conn.ExecContext(ctx, query+id)
		}
	}
	// The session ends; what it has prepared does not.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	if err != nil {
		return err
	}
	how := "XA COMMIT "
	if h.rnd.IntN(3) == 0 {
		how = "XA ROLLBACK "
	}
	for ctx.Err() == nil {
		// A commit while the first session is ending can be lost by the server.
		var alive int
		err := h.o.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?`, session).Scan(&alive)
		if err == nil && alive == 0 {
			_, err = h.o.db.ExecContext(ctx, how+id)
			var e *mysql.MySQLError
			if err == nil || errors.As(err, &e) && e.Number == 1397 { // ended before a crash
				return nil
			}
		}
		if err != nil && !passing(err) {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// endPrepared rolls back what is still prepared.
func (o *mysqlOrigin) endPrepared(ctx context.Context) error {
	rows, err := o.db.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		return err
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var format, first, second int
		var id string
		if err := rows.Scan(&format, &first, &second, &id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := o.db.ExecContext(ctx, "XA ROLLBACK '"+id+"'"); err != nil {
			return err
		}
	}
	return nil
}

func (o *mysqlOrigin) truth(ctx context.Context) (map[string]int, int, error) {
	rows, err := o.db.QueryContext(ctx, `SELECT k, version FROM truth WHERE version > 0`)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	found, total := map[string]int{}, 0
	for rows.Next() {
		var key string
		var version int
		if err := rows.Scan(&key, &version); err != nil {
			return nil, 0, err
		}
		found[key] = version
		total += version
	}
	return found, total, errors.Join(rows.Err(), rows.Close())
}

func (o *mysqlOrigin) parked(ctx context.Context) (n int, err error) {
	err = o.db.QueryRowContext(ctx, `SELECT COUNT(*) FROM postrider_parked`).Scan(&n)
	return n, err
}
