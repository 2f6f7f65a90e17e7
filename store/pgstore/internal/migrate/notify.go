package migrate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// notifySQL makes every INSERT notify, once per transaction, or stops that. Concurrent
// transactions need one notification: the second one does not take the lock for which all
// notifying transactions wait at their commit.
func (s *Migrator) notifySQL(on bool) string {
	schema := db.Quote(s.Schema)
	if !on {
		return fmt.Sprintf("DROP TRIGGER IF EXISTS postrider_wake ON %[1]s.outbox; DROP FUNCTION IF EXISTS %[1]s.wake();", schema)
	}
	return fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s.wake() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $wake$
BEGIN
    IF pg_try_advisory_xact_lock(hashtextextended('%[2]s', 0)) THEN
        PERFORM pg_notify('%[2]s', '');
    END IF;
    RETURN NULL;
END;
$wake$;
CREATE OR REPLACE TRIGGER postrider_wake AFTER INSERT ON %[1]s.outbox FOR EACH STATEMENT EXECUTE FUNCTION %[1]s.wake();`, schema, db.Channel(s.Schema))
}

// setNotify executes MigrateRequest.Notify.
func (s *Migrator) setNotify(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	err := s.whenFree(ctx, req, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().Exec(ctx, s.notifySQL(req.Notify == ops.NotifyOn)).ReadAll()
		return err
	})
	if err != nil {
		return nil, s.Wrap("set whether writers notify", err)
	}
	return &ops.Step{Version: db.Version, Name: "notify " + string(req.Notify), Took: time.Since(start)}, nil
}
