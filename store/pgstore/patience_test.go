package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
)

// named is a session that its name tells from others.
func (d *db) named(application string) *pgx.Conn {
	d.Helper()
	cfg := d.pool.Config().ConnConfig
	cfg.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = conn.Close(d.Context()) }) // with it ends what it holds
	return conn
}

// Every change of the schema waits for a writer a moment at a time, so that
// others write on, says whom it waits for, and is done when that one has ended.
func TestMigrationsAskAgain(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for _, c := range []struct {
			name, table string
			req         ops.MigrateRequest
		}{
			{"down", "relay", ops.MigrateRequest{Target: 6}}, // migration 7 has changed it
			{"up", "relay", ops.MigrateRequest{}},
			{"notify", "outbox", ops.MigrateRequest{Notify: ops.NotifyOn}},
			{"partitions", "outbox", ops.MigrateRequest{Partition: true}},
			{"notify in partitions", "outbox", ops.MigrateRequest{Notify: ops.NotifyOff}},
			{"away", "outbox", ops.MigrateRequest{Target: -1}},
		} {
			conn := d.named("the day's report")
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d.do(tx, `LOCK TABLE box.`+c.table+` IN ROW EXCLUSIVE MODE`)
			c.req.Wait = -1
			_, err = d.store("main").Office().Migrator.Migrate(t.Context(), c.req)
			var busy *ops.BusyError
			if !errors.As(err, &busy) || busy.PID != int(conn.PgConn().PID()) || busy.Application != "the day's report" || busy.Table != d.schema+"."+c.table {
				t.Errorf("%s: %v", c.name, err)
			}
			told := make(chan *ops.BusyError, 20)
			c.req.Wait, c.req.Waiting = time.Minute, func(b *ops.BusyError) { told <- b }
			done := make(chan error, 1)
			go func() {
				_, err := d.store("main").Office().Migrator.Migrate(t.Context(), c.req)
				done <- err
			}()
			select {
			case b := <-told:
				if b.PID != int(conn.PgConn().PID()) {
					t.Errorf("%s waits for %+v", c.name, b)
				}
			case err := <-done:
				t.Errorf("%s: done beside a writer: %v", c.name, err)
				continue
			}
			if c.table == "outbox" {
				d.label("others write on")
			}
			d.commit(tx)
			if err := <-done; err != nil {
				t.Errorf("%s, when it has ended: %v", c.name, err)
			}
		}
	})
}

// A prepared transaction has no session: it is named by what it was prepared under.
func TestMigrationNamesAPreparedTransaction(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "prepared")
		d.do(tx, `PREPARE TRANSACTION '`+d.schema+`'`)
		_, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Notify: ops.NotifyOn, Wait: -1})
		var busy *ops.BusyError
		if !errors.As(err, &busy) || busy.Prepared != d.schema || busy.PID != 0 {
			t.Errorf("got %v", err)
		}
		d.exec(`ROLLBACK PREPARED '` + d.schema + `'`)
	})
}
