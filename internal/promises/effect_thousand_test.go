package promises

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxtest"
	"github.com/postrider/postrider/internal/inboxwork"
)

// TestHistories compares random histories of a key's messages with a model.
//
// Promises: E
func TestHistories(t *testing.T) {
	histories := 8
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		histories = 1000
	}
	env := sqliteEnv(t)
	for range histories {
		for _, order := range []inbox.Order{inbox.Latest, inbox.Contiguous} {
			if err := inboxtest.History(t.Context(), env, order, rand.Uint64()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// delivererEnv is the environment variable with dialect and database of a process that
// delivers one message repeatedly.
const delivererEnv = "POSTRIDER_PROMISES_DELIVERER"

const (
	deliverers        = 4
	deliverersAtOnce  = 16
	deliveriesOfEach  = 250
	deliveriesTimeout = time.Minute
)

// beDeliverer delivers after each line on standard input.
func beDeliverer(config string) error {
	name, dsn, _ := strings.Cut(config, " ")
	driver, d := "pgx", dialect.Postgres
	if name == "sqlite" {
		driver, d = "sqlite", dialect.SQLite
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(deliverersAtOnce)
	in := inboxwork.New(d, "billing", nil)
	if err := db.Ping(); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deliveriesTimeout)
	defer cancel()
	var wg sync.WaitGroup
	left := make(chan int, deliveriesOfEach)
	for i := range deliveriesOfEach {
		left <- i
	}
	close(left)
	errs := make([]error, deliverersAtOnce)
	for i := range deliverersAtOnce {
		wg.Go(func() {
			for range left {
				if errs[i] = deliverOne(ctx, db, in); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// deliverOne delivers until the inbox allows the acknowledgement, and checks that the
// effect exists.
func deliverOne(ctx context.Context, db *sql.DB, in *inboxwork.Inbox) error {
	for {
		err := in.Once(ctx, db, placed, func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO effect VALUES ('x', 1)")
			return err
		})
		var again *inbox.RetryableError
		if errors.As(err, &again) {
			continue
		}
		if err != nil {
			return err
		}
		var n int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM effect").Scan(&n); err != nil || n != 1 {
			return fmt.Errorf("acknowledgement allowed with %d effects, %v", n, err)
		}
		return nil
	}
}

// TestThousandDeliveries: 16 goroutines in each of 4 processes deliver one
// message 1,000 times.
//
// Promises: E
func TestThousandDeliveries(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		url := postgres18(t)
		db := openSQL(t, "pgx", url)
		inboxDB(t, db, dialect.Postgres)
		thousandDeliveries(t, db, "postgres "+url)
	})
	t.Run("sqlite", func(t *testing.T) {
		db, file := sqlite(t)
		inboxDB(t, db, dialect.SQLite)
		thousandDeliveries(t, db, "sqlite file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	})
}

func thousandDeliveries(t *testing.T, db *sql.DB, config string) {
	t.Helper()
	var starts []io.Writer
	var wg sync.WaitGroup
	for range deliverers {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), delivererEnv+"="+config)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("the process printed %q, %v", line, err)
		}
		starts = append(starts, in)
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, in := range starts {
		if _, err := io.WriteString(in, "go\n"); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n := count(t, db, "SELECT count(*) FROM effect"); n != 1 {
		t.Errorf("%d deliveries had %d effects", deliverers*deliveriesOfEach, n)
	}
}
