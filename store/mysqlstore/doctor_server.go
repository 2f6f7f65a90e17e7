package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/ops"
)

// variables are global settings of the server.
func (p *patient) variables(ctx context.Context, names ...string) (map[string]string, error) {
	return variables(ctx, p.box.DB, names...)
}

// examineServer looks whether relays work with this server at all.
func (p *patient) examineServer(ctx context.Context) ([]ops.Finding, error) {
	v, err := p.variables(ctx, decisive()...)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"version": v["version"]}
	var refusal *store.UnusableError
	err = refused(v)
	if err == nil {
		err = inGroup(ctx, p.box.DB, v["group_replication_group_name"])
	}
	if errors.As(err, &refusal) {
		return []ops.Finding{{Severity: ops.Critical, What: refusal.What, Why: "relays refuse to work", Fix: refusal.Fix, Data: data}}, nil
	}
	if err != nil {
		return nil, err
	}
	least, name := [3]int{8, 0, 16}, "MySQL 8.0.16"
	if p.maria {
		least, name = [3]int{10, 11, 0}, "MariaDB 10.11"
	}
	if old := numbersOf(v["version"]); slices.Compare(old[:], least[:]) < 0 {
		return []ops.Finding{{
			Severity: ops.Warning, What: fmt.Sprintf("the server is older than %s (%s)", name, v["version"]), Data: data,
			Why: "it was never tested here, and MySQL before 8.0.16 ignores the conditions that keep bad rows out", Fix: "upgrade the server",
		}}, nil
	}
	return fine("version "+v["version"], data), nil
}

// numbersOf reads a version such as 10.11.19-MariaDB.
func numbersOf(version string) (n [3]int) {
	for i, part := range strings.SplitN(version, ".", len(n)) {
		if end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			part = part[:end]
		}
		n[i], _ = strconv.Atoi(part) // what is no number counts as 0
	}
	return n
}

// examinePrivileges asks for the plan of statements that it does not run: the server wants
// the same privileges for both.
func (p *patient) examinePrivileges(ctx context.Context) ([]ops.Finding, error) {
	if p.req.Role != "" {
		return []ops.Finding{{
			Severity: ops.Warning, What: fmt.Sprintf("check skipped: the privileges of user %q are unknown", p.req.Role),
			Why: "MySQL shows a user's own privileges only", Fix: "run the doctor as that user, without --role",
		}}, nil
	}
	var found []ops.Finding
	var refusal *store.UnusableError
	if err := sessions.SeesAll(ctx, p.box.DB); errors.As(err, &refusal) {
		found = append(found, ops.Finding{Severity: ops.Critical, What: refusal.What, Why: "relays of this user refuse to work", Fix: refusal.Fix, SQL: []string{refusal.Fix}})
	} else if err != nil {
		return nil, err
	}
	for _, t := range []struct{ table, column string }{
		{"postrider_progress", "epoch"},
		{"postrider_relay", "ttl"},
		{"postrider_parked", "lane"},
		{"postrider_act", "lane"},
		{"postrider_dropped", "dropped_at"},
		{"postrider_alarm", "n"},
		{"postrider_info", "epoch"},
		{"postrider_journal", "at"},
		{"postrider_outbox", ""},
	} {
		need := map[string]string{"SELECT": "SELECT 1 FROM " + t.table}
		if t.column != "" {
			need["UPDATE"] = "UPDATE " + t.table + " SET " + t.column + " = " + t.column
			need["DELETE"] = "DELETE FROM " + t.table
			need["INSERT"] = "INSERT INTO " + t.table + " SELECT * FROM " + t.table
		}
		if t.table == "postrider_parked" { // some of its columns are computed
			const columns = "pipe, seq, lane, state, captures, due_at, attempts, class, code, error, " + db.MessageColumns
			need["INSERT"] = "INSERT INTO " + t.table + " (" + columns + ") SELECT " + columns + " FROM " + t.table
		}
		if t.table == "postrider_info" {
			delete(need, "DELETE")
			delete(need, "INSERT")
		}
		if t.table == "postrider_journal" {
			delete(need, "DELETE")
			delete(need, "UPDATE")
		}
		var missing []string
		for _, privilege := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			if need[privilege] == "" {
				continue
			}
			switch may, err := p.may(ctx, need[privilege]+" LIMIT 0"); {
			case err != nil:
				return found, err
			case !may:
				missing = append(missing, privilege)
			}
		}
		if len(missing) > 0 {
			found = append(found, ops.Finding{
				Severity: ops.Critical, What: fmt.Sprintf("the user lacks %s on %s", strings.Join(missing, ", "), t.table), Why: "relays of this user cannot work",
				Fix: fmt.Sprintf("GRANT %s ON %s to the relay's user", strings.Join(missing, ", "), t.table), Data: map[string]any{"table": t.table, "missing": missing},
			})
		}
	}
	if len(found) == 0 {
		found = fine("the user has what a relay needs", nil)
	}
	return found, nil
}

// may reports whether the user may run a statement.
func (p *patient) may(ctx context.Context, query string) (bool, error) {
	rows, err := p.box.DB.QueryContext(ctx, "EXPLAIN "+query)
	switch db.Code(err) {
	case db.ErrTableDenied, db.ErrColumnDenied, db.ErrAccessDB:
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer rows.Close()
	return rows.Err() == nil, rows.Err()
}

// leastPacket has room for the largest message, also where its bytes are escaped.
const leastPacket = 32 << 20

// examineSettings looks at global settings that lose commits or refuse statements.
func (p *patient) examineSettings(ctx context.Context) ([]ops.Finding, error) {
	v, err := p.variables(ctx, "log_bin", "binlog_format", "sync_binlog", "sql_mode", "max_allowed_packet", "innodb_flush_log_at_trx_commit", "innodb_autoinc_lock_mode")
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	warn := func(name, why, set string) {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: name + " is " + v[name], Why: why, Fix: "SET GLOBAL " + set + ", and write it into the server's configuration",
			SQL: []string{"SET GLOBAL " + set}, Data: map[string]any{"setting": name, "value": v[name]},
		})
	}
	binlog := strings.EqualFold(v["log_bin"], "ON")
	if binlog && strings.EqualFold(v["binlog_format"], "STATEMENT") {
		warn("binlog_format", "the server refuses writes of transactions that are READ COMMITTED, as those of consumers", "binlog_format = 'ROW'")
	}
	if binlog && v["sync_binlog"] != "1" {
		warn("sync_binlog", "a crash of the machine can take back a commit whose message was delivered", "sync_binlog = 1")
	}
	if v["innodb_flush_log_at_trx_commit"] != "1" {
		warn("innodb_flush_log_at_trx_commit", "a crash of the machine can take back a commit whose message was delivered", "innodb_flush_log_at_trx_commit = 1")
	}
	if mode := strings.ToUpper(v["sql_mode"]); !strings.Contains(mode, "STRICT_TRANS_TABLES") && !strings.Contains(mode, "STRICT_ALL_TABLES") {
		warn("sql_mode", "the server cuts values that are too long and reports no error", "sql_mode = CONCAT(@@GLOBAL.sql_mode, ',STRICT_TRANS_TABLES')")
	}
	if n, err := strconv.ParseInt(v["max_allowed_packet"], 10, 64); err != nil || n < leastPacket {
		warn("max_allowed_packet", "a message of 16 MiB is not accepted from its writer, or cannot be set aside", "max_allowed_packet = 67108864")
	}
	if v["innodb_autoinc_lock_mode"] != "2" { // it can be set at the start only
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: "innodb_autoinc_lock_mode is " + v["innodb_autoinc_lock_mode"], Why: "a long INSERT ... SELECT into the outbox holds up its other writers",
			Fix: "set innodb_autoinc_lock_mode = 2 in the server's configuration, and restart it", Data: map[string]any{"setting": "innodb_autoinc_lock_mode"},
		})
	}
	if len(found) == 0 {
		found = fine("the settings that matter are as they should be", nil)
	}
	return found, nil
}

// examineIndexes looks for the indexes that statements are told to use.
func (p *patient) examineIndexes(ctx context.Context) ([]ops.Finding, error) {
	var found []ops.Finding
	for _, want := range []struct{ table, name, columns string }{
		{"outbox", "lane_seq", "lane, seq, size"},
		{"parked", "of_state", "pipe, state, seq, lane"},
		{"parked", "of_lane", "pipe, lane, state, seq"},
		{"parked", "of_late", "pipe, lane, expected"},
		{"parked", "of_id", "pipe, id"},
		{"parked", "of_key", "pipe, state, `key`, captures, seq"},
		{"parked", "of_topic", "pipe, state, topic, seq"},
		{"parked", "of_code", "pipe, state, code, seq"},
		{"parked", "of_cause", "pipe, state, code, topic, seq"},
		{"parked", "of_queue", "pipe, lane, queue, place, seq"},
	} {
		columns, err := db.List[string](ctx, p.box.DB, `SELECT COLUMN_NAME FROM information_schema.STATISTICS
			WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND INDEX_NAME = ? ORDER BY SEQ_IN_INDEX`, "postrider_"+want.table, want.name)
		if err != nil {
			return nil, err
		}
		if strings.Join(columns, ", ") == strings.ReplaceAll(want.columns, "`", "") {
			continue
		}
		drop, why, severity := "", "status, dead list and message show fail", ops.Warning
		if len(columns) > 0 {
			drop, why = "DROP KEY "+want.name+", ", "status, dead list and message show read everything"
		}
		if want.table == "outbox" || want.name == "of_queue" {
			why, severity = "relays cannot read, or read everything", ops.Critical
		}
		fix := fmt.Sprintf("ALTER TABLE postrider_%s %sADD KEY %s (%s)", want.table, drop, want.name, want.columns)
		found = append(found, ops.Finding{
			Severity: severity, What: fmt.Sprintf("the index %s of postrider_%s is missing, or has other columns", want.name, want.table), Why: why, Fix: fix, SQL: []string{fix},
		})
	}
	if len(found) == 0 {
		return fine("the indexes are there", nil), nil
	}
	return found, nil
}

// examineTransactions looks for statements that keep dead numbers open, and for
// transactions that keep old rows.
func (p *patient) examineTransactions(ctx context.Context) ([]ops.Finding, error) {
	if err := sessions.SeesAll(ctx, p.box.DB); err != nil {
		return nil, err
	}
	var found []ops.Finding
	limit := p.req.Limits.Transaction
	oldest, err := sessions.Oldest(ctx, p.box.DB)
	if err != nil {
		return nil, err
	}
	if age := oldest.Age(); worse(age, limit) > ops.OK {
		kill := fmt.Sprintf("KILL QUERY %d", oldest.ID)
		found = append(found, ops.Finding{
			Severity: worse(age, limit), What: fmt.Sprintf("a statement of %s runs for %s", oldest, age), Data: map[string]any{"session": oldest.ID, "seconds": oldest.Seconds},
			Why: "every rollback since it began leaves a number that relays must remember: at 4,000 of them messages behind wait",
			Fix: "end it: " + kill, SQL: []string{kill},
		})
	}
	rows, err := p.box.DB.QueryContext(ctx, `SELECT t.trx_mysql_thread_id, COALESCE(CONCAT(l.USER, '@', l.HOST), ''), TIMESTAMPDIFF(SECOND, t.trx_started, `+sessions.TrxNow+`)
		FROM information_schema.INNODB_TRX t LEFT JOIN information_schema.PROCESSLIST l ON l.ID = t.trx_mysql_thread_id
		WHERE t.trx_mysql_thread_id <> 0 AND t.trx_started <= `+sessions.TrxNow+` - INTERVAL ? SECOND ORDER BY t.trx_started LIMIT 10`, int64(limit.Seconds()))
	if err != nil {
		return found, err
	}
	defer rows.Close()
	for rows.Next() {
		var session, seconds int64
		var who string
		if err := rows.Scan(&session, &who, &seconds); err != nil {
			return found, err
		}
		age := time.Duration(seconds) * time.Second
		found = append(found, ops.Finding{
			Severity: worse(age, limit), What: fmt.Sprintf("the transaction of session %d (%s) is open for %s", session, who, age),
			Why: "its messages are not committed, and the server keeps every old row since it began",
			Fix: fmt.Sprintf("end it: KILL %d", session), SQL: []string{fmt.Sprintf("KILL %d", session)}, Data: map[string]any{"session": session, "seconds": seconds},
		})
	}
	if err := rows.Err(); err != nil || len(found) > 0 {
		return found, err
	}
	return fine("no statement and no transaction is open for long", nil), nil
}

// examinePrepared looks for prepared XA transactions, which have no session.
func (p *patient) examinePrepared(ctx context.Context) ([]ops.Finding, error) {
	var n, seconds int64
	err := p.box.DB.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(MAX(TIMESTAMPDIFF(SECOND, trx_started, `+sessions.TrxNow+`)), 0) FROM information_schema.INNODB_TRX
		WHERE trx_mysql_thread_id = 0 AND trx_started <= `+sessions.TrxNow+` - INTERVAL ? SECOND`, int64(p.req.Limits.Transaction.Seconds())).Scan(&n, &seconds)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return fine("no prepared transaction is open for long", nil), nil
	}
	age := time.Duration(seconds) * time.Second
	return []ops.Finding{{
		Severity: worse(age, p.req.Limits.Transaction), What: fmt.Sprintf("%d prepared transactions (XA) are open, one for %s", n, age), Data: map[string]any{"count": n, "seconds": seconds},
		Why: "their messages are not sent, and the rows that they have changed stay locked", Fix: "list them with XA RECOVER, then XA COMMIT or XA ROLLBACK each",
	}}, nil
}

func (p *patient) examineSize(ctx context.Context) ([]ops.Finding, error) {
	rows, err := p.box.DB.QueryContext(ctx, `SELECT TABLE_NAME, COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0) FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'postrider\_%' AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sum, data := int64(0), map[string]any{}
	for rows.Next() {
		var table string
		var bytes int64
		if err := rows.Scan(&table, &bytes); err != nil {
			return nil, err
		}
		sum, data[table] = sum+bytes, bytes
	}
	return fine(fmt.Sprintf("the tables take %d MiB", sum>>20), data), rows.Err()
}
