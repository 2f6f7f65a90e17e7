package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
)

// server is what a lease must know of the server that answers.
type server struct {
	id   string // of the server and its data directory
	self string // the SQL of id
}

// server looks at the settings of the server and refuses one that numbers rows otherwise
// than this store's proof assumes.
func (s *Store) server(ctx context.Context, q db.Querier) (server, error) {
	v, err := variables(ctx, q, append(decisive(), "server_uuid", "hostname", "port", "server_id")...)
	if err != nil {
		return server{}, err
	}
	if err := refused(v); err != nil {
		return server{}, err
	}
	if err := inGroup(ctx, q, v["group_replication_group_name"]); err != nil {
		return server{}, err
	}
	srv := server{id: v["server_uuid"], self: `@@server_uuid`}
	if srv.id == "" { // MariaDB
		srv.id = v["hostname"] + ":" + v["port"] + "/" + v["server_id"]
		srv.self = `CONCAT(@@hostname, ':', @@port, '/', @@server_id)`
	}
	return srv, nil
}

// run is the SQL of when the server was started, in microseconds since 1970. A server begins with it
// to count what UUID_SHORT returns, and never looks at its clock again. Each call adds 0.06: calls in
// one run never return less than before.
const run = `CAST((UUID_SHORT() & 72057594037927935) DIV 16.777216 AS SIGNED)`

// sameRun is how far run may be above the column started, which leases move on before it is: by
// eight million calls. A server that was started again is above it by a second or more.
const sameRun = 500_000

// here returns the SQL of the identity. On another server, or after a restart, the SQL yields an
// identity that no lease returns.
func (v server) here() string {
	return fmt.Sprintf(`CONCAT(postrider_info.id, '/', CASE WHEN postrider_info.server = %s AND %s - postrider_info.started BETWEEN 0 AND %d
		THEN postrider_info.epoch ELSE 'another server or start' END)`, v.self, run, sameRun)
}

// identify fills in identity and lanes. Another server, or a restart of the same one,
// raises the epoch, once however many instances see it.
func (s *Store) identify(ctx context.Context, q db.Querier, g *store.Grant) (here string, err error) {
	srv, err := s.server(ctx, q)
	if err != nil {
		return "", err
	}
	const tries = 5 // of which all but one find that another instance was first
	for range tries {
		var id, known, settings string
		var epoch, started, now int64
		err := q.QueryRowContext(ctx, `SELECT id, epoch, lanes, server, started, `+run+`, `+sessions.Settings+` FROM postrider_info`).Scan(&id, &epoch, &g.Total, &known, &started, &now, &settings)
		if err == nil {
			err = sessions.Suits(settings)
		}
		if err != nil {
			return "", err
		}
		same := known == srv.id && now >= started && now-started <= sameRun
		if g.Identity = fmt.Sprintf("%s/%d", id, epoch); same && now-started <= sameRun/2 {
			return srv.here(), nil
		}
		step := int64(0)
		if !same {
			step = epochStep()
		}
		_, err = q.ExecContext(ctx, `UPDATE postrider_info SET epoch = epoch + ?, server = ?, started = ? WHERE one = 1 AND epoch = ? AND started = ?`, step, srv.id, now, epoch, started)
		if err != nil {
			return "", err
		}
	}
	return "", errors.New("the identity changes again and again: several servers write to one database")
}

// epochStep is by how much the epoch rises. It is random: a failover may lose a rise, and the server
// that lacks it must not come to the same identity by another history.
func epochStep() int64 { return 1 + rand.Int64N(1<<40) }

// variables are global settings of the server.
func variables(ctx context.Context, q db.Querier, names ...string) (map[string]string, error) {
	rows, err := q.QueryContext(ctx, `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('`+strings.Join(names, `', '`)+`')`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	v := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		v[strings.ToLower(name)] = value
	}
	return v, errors.Join(rows.Err(), rows.Close()) // the next query may need its connection
}

// decisive are the settings that refused looks at.
func decisive() []string {
	return []string{"version", "auto_increment_increment", "read_only", "wsrep_on", "group_replication_group_name", "group_replication_single_primary_mode"}
}

// inGroup refuses a member of a replication group that is not its primary. One that was expelled, or
// was started and has not joined, may lack what the group has committed.
func inGroup(ctx context.Context, q db.Querier, group string) error {
	if group == "" {
		return nil
	}
	var is bool
	err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM performance_schema.replication_group_members
		WHERE MEMBER_ID = @@server_uuid AND MEMBER_STATE = 'ONLINE' AND MEMBER_ROLE = 'PRIMARY')`).Scan(&is)
	if err == nil && !is {
		err = &store.UnusableError{What: "the server is not the primary of its replication group", Fix: "connect to the primary, or let this server join the group", Passing: true}
	}
	return err
}

// refused reports the first setting with which numbers are not drawn in one order by one
// server.
func refused(v map[string]string) error {
	switch {
	case strings.Contains(strings.ToLower(v["version"]), "tidb"), strings.Contains(strings.ToLower(v["version"]), "vitess"):
		return &store.UnusableError{What: "server version " + v["version"] + " draws numbers on several servers", Fix: "use MySQL or MariaDB with one primary"}
	case v["auto_increment_increment"] != "1":
		return &store.UnusableError{What: "auto_increment_increment is " + v["auto_increment_increment"] + ": several servers draw numbers", Fix: "write on one server and SET GLOBAL auto_increment_increment = 1"}
	case strings.EqualFold(v["wsrep_on"], "ON"):
		return &store.UnusableError{What: "the server is a Galera node: what another node writes is not seen before its commit", Fix: "use a server with asynchronous or semi-synchronous replication"}
	case v["group_replication_group_name"] != "" && strings.EqualFold(v["group_replication_single_primary_mode"], "OFF"):
		return &store.UnusableError{What: "the server's replication group has several primaries: what another one writes is not seen before its commit", Fix: "run the group with group_replication_single_primary_mode = ON"}
	case v["read_only"] != "" && !strings.EqualFold(v["read_only"], "OFF"):
		return readOnly()
	}
	return nil
}

func readOnly() error {
	return &store.UnusableError{What: "the server is read-only", Fix: "connect to the primary", Passing: true}
}

// primary returns an error where the server takes no writes, or may lack some of the last ones.
func primary(ctx context.Context, q *sql.Conn) error {
	v, err := variables(ctx, q, decisive()...)
	if err == nil {
		err = refused(v)
	}
	if err == nil {
		err = inGroup(ctx, q, v["group_replication_group_name"])
	}
	return err
}
