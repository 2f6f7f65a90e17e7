package mysqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
)

// onePacket is how many bytes of messages a settlement sends in one packet. A longer one
// is sent statement by statement, each of which fits what servers take by default.
const onePacket = 4 << 20

// Settle implements store.Store. Without records to park it is one statement; otherwise
// one transaction in one packet, so that a process stopped inside it leaves nothing open.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) (lost []store.Lane, err error) {
	if len(settlements) == 0 {
		return nil, nil
	}
	ordered := slices.SortedFunc(slices.Values(settlements), func(a, b store.Settlement) int { return cmp.Compare(a.Lane, b.Lane) })
	for i := 1; i < len(ordered); i++ {
		if ordered[i].Lane == ordered[i-1].Lane {
			return nil, fmt.Errorf("mysql: settle: lane %d is in one call twice", ordered[i].Lane)
		}
	}
	identity, here := s.leased()
	err = s.onOne(ctx, "settle", func(conn *sql.Conn) error {
		return s.box.Wrap("settle", db.Again(ctx, func() error {
			lost, err = s.settle(ctx, conn, identity, here, ordered)
			return err
		}))
	})
	for i := range ordered {
		if st := &ordered[i]; err == nil && !slices.Contains(lost, st.Lane) {
			s.views.Settled(st.BootID, st.Lane, st.Epoch)
		}
	}
	return lost, err
}

func (s *Store) settle(ctx context.Context, conn *sql.Conn, identity, here string, ordered []store.Settlement) ([]store.Lane, error) {
	// What a call does beside the positions it does to the lanes that carry its number.
	call := rand.Int64()
	fence, err := s.fence(identity, here, call, ordered)
	if err != nil {
		return nil, err
	}
	var rest []db.Statement
	size := 0
	x := operations.NewExecutor(s.box, conn)
	for i := range ordered {
		more, err := s.consequences(ctx, conn, x, call, &ordered[i])
		if err != nil {
			return nil, err
		}
		rest = append(rest, more...)
	}
	for _, st := range rest {
		size += bytesOf(st.Args)
	}
	if len(rest) == 0 && len(fence) == 1 {
		res, err := conn.ExecContext(ctx, fence[0].Query, fence[0].Args...)
		if err != nil {
			return nil, err
		}
		if n, err := res.RowsAffected(); err == nil && n == int64(len(ordered)) {
			return nil, nil
		}
		return s.lost(ctx, conn, identity, here, ordered)
	}
	all := slices.Concat([]db.Statement{{Query: "START TRANSACTION"}}, fence, rest, []db.Statement{{Query: "COMMIT"}})
	if err := s.transact(ctx, conn, all, len(fence) == 1 && size <= onePacket); err != nil {
		return nil, err
	}
	return s.lost(ctx, conn, identity, here, ordered)
}

// transact runs the statements of a transaction on one connection, in one packet if that
// is asked for. A statement that fails ends those behind it, and leaves the transaction
// open: it is rolled back.
func (s *Store) transact(ctx context.Context, conn *sql.Conn, all []db.Statement, one bool) (err error) {
	if one {
		var texts []string
		var args []any
		for _, st := range all {
			texts, args = append(texts, st.Query), append(args, st.Args...)
		}
		_, err = conn.ExecContext(ctx, strings.Join(texts, ";\n"), args...)
	} else {
		for _, st := range all {
			if _, err = conn.ExecContext(ctx, st.Query, st.Args...); err != nil {
				break
			}
		}
	}
	if err != nil {
		if _, rerr := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); rerr != nil && !errors.Is(rerr, sql.ErrConnDone) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// fence moves the lanes that are the caller's, at the epoch that he knows, and no others.
// It takes several statements where positions are long.
func (s *Store) fence(identity, here string, call int64, ordered []store.Settlement) ([]db.Statement, error) {
	var all []db.Statement
	var parts []string
	var args []any
	size := 0
	end := func() {
		query := `UPDATE postrider_progress p JOIN (` + strings.Join(parts, " UNION ALL ") + `) AS x ON p.lane = x.lane
		SET p.epoch = p.epoch + 1, p.pos = COALESCE(x.pos, p.pos), p.holes = COALESCE(x.holes, p.holes), p.delivered = p.delivered + x.delivered,
		p.settled_at = ` + db.Now + `, p.settled_by = x.mark, p.settled_epoch = x.epoch, p.settled_call = ?
		WHERE p.pipe = ? AND p.epoch = x.epoch AND p.owner = x.owner COLLATE utf8mb4_bin`
		args = append(args, call, s.box.Pipe)
		if identity != "" {
			query += ` AND EXISTS (SELECT 1 FROM postrider_info WHERE ` + here + ` = ?)`
			args = append(args, identity)
		}
		all = append(all, db.Statement{Query: query, Args: args})
		parts, args, size = nil, nil, 0
	}
	for i := range ordered {
		st := &ordered[i]
		var pos, open any
		if st.Position != nil {
			p, err := db.Of(st.Lane, st.Position, identity)
			if err != nil {
				return nil, err
			}
			text := db.HolesText(p.Open)
			if size += len(text); size > onePacket && len(parts) > 0 {
				end()
				size = len(text)
			}
			pos, open = p.At, text
		}
		// The first part names the columns: MariaDB writes the text to its binlog, beside the rows.
		part := `SELECT ?,?,?,?,?,?,?`
		if len(parts) == 0 {
			part = `SELECT ? AS lane, ? AS epoch, ? AS owner, ? AS pos, ? AS holes, ? AS delivered, ? AS mark`
		}
		parts = append(parts, part)
		args = append(args, st.Lane, st.Epoch, st.BootID, pos, open, st.Delivered, signature(st))
	}
	end()
	return all, nil
}

// lost returns the lanes on which the settlement is not the last one that was made.
func (s *Store) lost(ctx context.Context, q db.Querier, identity, here string, ordered []store.Settlement) ([]store.Lane, error) {
	var lanes []store.Lane
	for i := range ordered {
		lanes = append(lanes, ordered[i].Lane)
	}
	rows, err := q.QueryContext(ctx, `SELECT p.lane, p.settled_by, p.settled_epoch, `+here+` FROM postrider_progress p
		JOIN postrider_info WHERE p.pipe = ? AND p.lane IN (`+db.Numbers(lanes)+`)`, s.box.Pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	type mark struct {
		by    string
		epoch int64
	}
	marks := map[store.Lane]mark{}
	for rows.Next() {
		var lane store.Lane
		var m mark
		var found string
		if err := rows.Scan(&lane, &m.by, &m.epoch, &found); err != nil {
			return nil, err
		}
		if marks[lane] = m; identity != "" && found != identity {
			return nil, fmt.Errorf("mysql: settle: leased under %s, found %s: %w", identity, found, store.ErrIdentity)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var lost []store.Lane
	for i := range ordered {
		if st := &ordered[i]; marks[st.Lane] != (mark{signature(st), st.Epoch}) {
			lost = append(lost, st.Lane)
		}
	}
	return lost, nil
}

// signature is a hash of whose settlement it is and what it says. It is short because each
// change of a lane writes it to the binlog twice, in the row before and in the row behind.
func signature(st *store.Settlement) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%016x", st.BootID, st.Mark()))
	return hex.EncodeToString(sum[:8])
}

// consequences are what a settlement does beside its position, on condition that this
// call has moved the lane.
func (s *Store) consequences(ctx context.Context, q db.Querier, x *operations.Executor, call int64, st *store.Settlement) ([]db.Statement, error) {
	var all []db.Statement
	for i := range st.Park {
		one, err := s.park(call, st.Lane, &st.Park[i])
		if err != nil {
			return nil, fmt.Errorf("park record %d: %w", st.Park[i].Seq, err)
		}
		all = append(all, one)
	}
	if len(st.Unpark) > 0 {
		all = append(all, operations.Unparked(` WHERE k.pipe = ? AND k.seq IN (`+db.Numbers(st.Unpark)+`) AND k.lane = ? AND p.settled_call = ?`, db.Now, s.box.Pipe, st.Lane, call))
		all = append(all, db.Statement{Query: `DELETE k FROM postrider_parked k JOIN postrider_progress p ON p.pipe = k.pipe AND p.lane = k.lane
			WHERE k.pipe = ? AND k.seq IN (` + db.Numbers(st.Unpark) + `) AND k.lane = ? AND p.settled_call = ?`, Args: []any{s.box.Pipe, st.Lane, call}})
	}
	if len(st.Requests) == 0 {
		return all, nil
	}
	settled, err := s.behind(ctx, q, st)
	if err != nil {
		return nil, err
	}
	done, err := x.Statements(ctx, call, st, settled)
	return append(all, done...), err
}

// behind is the position of a lane behind a settlement that counts.
func (s *Store) behind(ctx context.Context, q db.Querier, st *store.Settlement) (holes.Position, error) {
	if st.Position != nil {
		p, _, err := db.Decode(st.Position)
		return p, err
	}
	settled, err := s.box.Positions(ctx, q, []store.Lane{st.Lane}, "")
	return settled[st.Lane], err
}

// bytesOf is how long arguments are that may be long.
func bytesOf(args []any) (n int) {
	for _, arg := range args {
		switch v := arg.(type) {
		case string:
			n += len(v)
		case []byte:
			n += len(v)
		}
	}
	return n
}

// park puts a record into the parked table or changes it there. Its generation
// and the time of its first failure stay.
func (s *Store) park(call int64, lane store.Lane, p *store.Park) (db.Statement, error) {
	m := &p.Message
	headers := "{}"
	if len(m.Headers) > 0 {
		text, err := json.Marshal(m.Headers)
		if err != nil {
			return db.Statement{}, err
		}
		headers = string(text)
	}
	failed, history, notBefore := `NULL`, `'[]'`, any(nil)
	var attempt []any
	if p.State == store.Dead || p.State == store.Retry {
		if failed = db.Now; p.Class != "" {
			history = `JSON_ARRAY(JSON_OBJECT('at', ` + db.Now + `, 'attempt', ?, 'class', ?, 'code', ?, 'error', ?))`
			attempt = []any{p.Attempts, p.Class, p.Code, p.Error}
		}
	}
	if !m.NotBefore.IsZero() {
		notBefore = m.NotBefore.UnixMicro()
	}
	due, args := db.Now, []any{s.box.Pipe, p.Seq, lane, p.State.String(), p.Captures && m.Key != "" && (p.State == store.Retry || p.State == store.Dead)}
	switch {
	case p.State == store.Scheduled && !m.NotBefore.IsZero():
		due, args = `?`, append(args, notBefore)
	case p.State == store.Retry || p.State == store.Scheduled:
		// Far times stay within the numbers of the database.
		due, args = `LEAST(`+db.Now+` + 0e0 + ?, 9e18)`, append(args, p.DueIn.Microseconds())
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	args = append(append(args, p.Attempts, p.Class, p.Code, p.Error), attempt...)
	args = append(args, []byte(m.ID), m.Topic, []byte(m.Key), m.Type, payload, m.ContentType, headers,
		m.Version, m.SchemaVersion, notBefore, m.Time.UnixMicro(), s.box.Pipe, lane, call)
	return db.Statement{Query: "INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, history," +
		" id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at)" +
		` SELECT ?, ?, ?, ?, ?, ` + due + `, ?, ?, ?, ?, ` + failed + `, ` + failed + `, ` + history + `, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
		FROM postrider_progress p WHERE p.pipe = ? AND p.lane = ? AND p.settled_call = ?
		ON DUPLICATE KEY UPDATE state = VALUES(state), captures = VALUES(captures), due_at = VALUES(due_at), attempts = VALUES(attempts),
		history = CASE WHEN VALUES(history) = '[]' THEN history ELSE JSON_ARRAY_APPEND(
			CASE WHEN JSON_LENGTH(history) < 8 THEN history ELSE JSON_REMOVE(history, '$[0]') END, '$', JSON_EXTRACT(VALUES(history), '$[0]')) END,
		class = VALUES(class), code = VALUES(code), error = VALUES(error),
		first_failed = COALESCE(first_failed, VALUES(first_failed)), last_attempt = COALESCE(VALUES(last_attempt), last_attempt)`, Args: args}, nil
}
