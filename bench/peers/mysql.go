package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

// mysqlEngine is a MySQL or MariaDB server.
type mysqlEngine struct{ my *testserver.MySQL }

func startMySQL(ctx context.Context, name string) (*mysqlEngine, error) {
	redo := "innodb-redo-log-capacity=2G"
	if strings.HasPrefix(name, "mariadb-") {
		redo = "innodb-log-file-size=2G"
	}
	server, err := testserver.LaunchMySQL(ctx, name, "", testserver.Durable(), testserver.WithConfig("innodb-buffer-pool-size=1G", "innodb-log-buffer-size=16M", redo))
	if err != nil {
		return nil, err
	}
	return &mysqlEngine{server}, nil
}

func (e *mysqlEngine) server() int      { return e.my.PID }
func (e *mysqlEngine) postgres() string { return "" }
func (e *mysqlEngine) stop()            { _ = e.my.Close() }

func (e *mysqlEngine) create(ctx context.Context, t *trial, name string) (err error) {
	if _, err := e.my.Query(ctx, "", "CREATE DATABASE "+name); err != nil {
		return err
	}
	t.database = e.my.DatabaseURL(name)
	if t.db, err = openMySQL(t.database); err != nil {
		return err
	}
	t.handled, err = handled(ctx, t.db)
	return err
}

func (e *mysqlEngine) drop(ctx context.Context, t *trial) error {
	_, err := t.db.ExecContext(ctx, "DROP DATABASE "+t.database[strings.LastIndex(t.database, "/")+1:])
	return errors.Join(err, t.db.Close())
}

// logged sums the files of the binlog.
func (e *mysqlEngine) logged(ctx context.Context, _ *trial) (sum float64, err error) {
	files, err := e.my.Query(ctx, "", "SHOW BINARY LOGS")
	for _, file := range files {
		var size float64
		if _, err := fmt.Sscan(file[1], &size); err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, err
}

// dead returns the updates and deletes of all tables twice: the server does not count them
// by table without its performance schema.
func (e *mysqlEngine) dead(ctx context.Context, t *trial, _ []string) (rows, all float64, err error) {
	all, err = handled(ctx, t.db)
	return all - t.handled, all - t.handled, err
}

// handled returns the rows that the server has updated and deleted so far.
func handled(ctx context.Context, db *sql.DB) (sum float64, err error) {
	for _, name := range []string{"Handler_update", "Handler_delete"} {
		var n float64
		if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&name, &n); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// isMySQL tells the two kinds of URLs apart.
func isMySQL(url string) bool {
	return strings.HasPrefix(url, "mysql:") || strings.HasPrefix(url, "mariadb:")
}

// openMySQL opens a pool with what the driver's users set for speed.
func openMySQL(url string) (*sql.DB, error) {
	conf := mysql.NewConfig()
	_, rest, _ := strings.Cut(url, "://root@")
	conf.User, conf.Net, conf.InterpolateParams = "root", "tcp", true
	conf.Addr, conf.DBName, _ = strings.Cut(rest, "/")
	connector, err := mysql.NewConnector(conf)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(32)
	return db, nil
}

// mysqlWays are the ways to read MySQL and MariaDB.
func mysqlWays() []*way {
	var all []*way
	for _, w := range clientsAndOurs() {
		if w.kind == ours {
			w.write = insertMySQL("postrider_outbox (topic, `key`, type, payload)")
		}
		all = append(all, w)
	}
	events := insertMySQL("events (aggregatetype, aggregateid, type, payload)")
	return append(all,
		&way{name: "skip-locked", setup: "4 workers, batches of 5,000, index (sent, number)", kind: tables, prepare: makeMySQLEvents, write: events, start: child("skip-locked")},
		&way{name: nameCanal, setup: "go-mysql's canal from the position before the backlog, publish asynchronously, note the position once a second", kind: logBased, prepare: makeCanal, write: events, start: foreign(nameCanal)},
	)
}

// makeMySQLEvents makes the table of the ways that bring none of their own.
func makeMySQLEvents(ctx context.Context, t *trial) error {
	_, err := t.db.ExecContext(ctx, `CREATE TABLE events (
		number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, id CHAR(36) NOT NULL DEFAULT (UUID()),
		aggregatetype VARCHAR(255) NOT NULL, aggregateid VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, payload LONGBLOB NOT NULL,
		created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), sent TINYINT NOT NULL DEFAULT 0, KEY pending (sent, number)) ENGINE=InnoDB`)
	return err
}

// makeCanal notes the position from which canal reads: it has no slot on the server.
func makeCanal(ctx context.Context, t *trial) error {
	if err := makeMySQLEvents(ctx, t); err != nil {
		return err
	}
	if _, err := t.db.ExecContext(ctx, "CREATE TABLE canal_position (file VARCHAR(255) NOT NULL, at BIGINT NOT NULL) ENGINE=InnoDB"); err != nil {
		return err
	}
	files, err := t.db.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return err
	}
	defer files.Close()
	columns, err := files.Columns()
	if err != nil {
		return err
	}
	var file string
	var at int64
	into := []any{&file, &at, new(sql.RawBytes)}[:len(columns)] // MySQL has a third one
	for files.Next() {                                          // the last one counts
		if err := files.Scan(into...); err != nil {
			return err
		}
	}
	if err := errors.Join(files.Err(), files.Close()); err != nil {
		return err
	}
	_, err = t.db.ExecContext(ctx, "INSERT INTO canal_position VALUES (?, ?)", file, at)
	return err
}

// insertMySQL returns a way's write: rows of topic, key, type and payload in one statement.
func insertMySQL(into string) func(ctx context.Context, t *trial, from, to int) error {
	return func(ctx context.Context, t *trial, from, to int) error {
		args := make([]any, 0, 4*(to-from))
		for i := from; i < to; i++ {
			args = append(args, t.topic, keyOf(i), "bench.event", []byte(payloadOf(i)))
		}
		_, err := t.db.ExecContext(ctx, "INSERT INTO "+into+" VALUES "+strings.Repeat("(?,?,?,?),", to-from-1)+"(?,?,?,?)", args...)
		return err
	}
}

// mysqlSkipLocked is skipLocked on MySQL: the claim is a lock, since there is no UPDATE with
// RETURNING.
func mysqlSkipLocked(ctx context.Context, database, addr, topic string) error {
	const workers, batch = 4, 5000
	db, err := openMySQL(database)
	if err != nil {
		return err
	}
	defer db.Close()
	client, err := newProducer(addr, kgo.Lz4Compression(), 0)
	if err != nil {
		return err
	}
	defer client.Close()
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() {
			for errs[i] == nil {
				var sent int
				sent, errs[i] = mysqlClaim(ctx, db, client, topic, batch)
				var refused *mysql.MySQLError
				if errors.As(errs[i], &refused) && refused.Number == 1213 { // a deadlock: another worker continues
					errs[i] = nil
				}
				if sent == 0 && errs[i] == nil {
					errs[i] = pause(ctx, 5*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mysqlClaim sends one batch.
func mysqlClaim(ctx context.Context, db *sql.DB, client *kgo.Client, topic string, batch int) (sent int, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(ctx, `SELECT number, aggregateid, payload FROM events FORCE INDEX (pending) WHERE sent = 0 ORDER BY number LIMIT ? FOR UPDATE SKIP LOCKED`, batch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var numbers strings.Builder
	var records []*kgo.Record
	for rows.Next() {
		var number int64
		r := &kgo.Record{Topic: topic}
		if err := rows.Scan(&number, &r.Key, &r.Value); err != nil {
			return 0, err
		}
		fmt.Fprintf(&numbers, ",%d", number)
		records = append(records, r)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(records) == 0 {
		return 0, err
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE events SET sent = 1 WHERE number IN (`+numbers.String()[1:]+`)`); err != nil {
		return 0, err
	}
	return len(records), tx.Commit()
}
