package mysqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/mysqlstore/internal/packets"
	"github.com/postrider/postrider/store/mysqlstore/internal/parking"
)

// Settle implements store.Store. Without records to park it is one statement; otherwise
// one transaction, in one packet where it has room: a process stopped inside it then leaves nothing open.
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
	// Records and requests change only in lanes whose row has the number of this call. It is never 0.
	call := 1 + rand.Int64N(math.MaxInt32)
	mark := markOf(ordered)
	fence, err := s.fence(identity, here, call, mark, ordered)
	if err != nil {
		return nil, err
	}
	var rest []db.Statement
	x := operations.NewExecutor(s.box, conn)
	for i := range ordered {
		more, err := s.consequences(ctx, conn, x, call, &ordered[i])
		if err != nil {
			return nil, err
		}
		rest = append(rest, more...)
	}
	if len(rest) == 0 && len(fence) == 1 {
		res, err := conn.ExecContext(ctx, fence[0].Query, fence[0].Args...)
		if err != nil {
			return nil, err
		}
		if n, err := res.RowsAffected(); err == nil && n == int64(len(ordered)) {
			return nil, nil
		}
		return s.lost(ctx, conn, identity, here, mark, ordered)
	}
	if err := packets.Transact(ctx, conn, append(fence, rest...)); err != nil {
		return nil, err
	}
	return s.lost(ctx, conn, identity, here, mark, ordered)
}

// fence moves the lanes that are the caller's, at the epoch that he knows, and no others.
// It takes several statements where the lanes are many or their positions long. A lane is few
// bytes in its text, which MariaDB writes to the binlog beside the rows. STRAIGHT_JOIN finds the
// lanes by the primary key: a scan would lock those of others, and the gap where a new pipe stands.
func (s *Store) fence(identity, here string, call, mark int64, ordered []store.Settlement) (all []db.Statement, err error) {
	var lanes []string
	size := 0
	end := func(boot string) {
		query := `UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', epoch BIGINT PATH '$[1]', delivered BIGINT PATH '$[2]',
		pos BIGINT PATH '$[3]', holes LONGTEXT PATH '$[4]')) AS x STRAIGHT_JOIN postrider_progress p ON p.lane = x.lane
		SET p.epoch = p.epoch + 1, p.holes = IF(x.pos IS NULL, p.holes, x.holes), p.pos = COALESCE(x.pos, p.pos), p.delivered = p.delivered + x.delivered,
		p.settled_at = ` + db.Now + `, p.settled_mark = ?, p.settled_call = ?
		WHERE p.pipe = ? AND p.owner = ? AND p.epoch = x.epoch`
		args := []any{"[" + strings.Join(lanes, ",") + "]", mark, call, s.box.Pipe, boot}
		if identity != "" {
			query += ` AND EXISTS (SELECT 1 FROM postrider_info WHERE ` + here + ` = ?)`
			args = append(args, identity)
		}
		all = append(all, db.Statement{Query: query, Args: args})
		lanes, size = nil, 0
	}
	for i := range ordered {
		st := &ordered[i]
		values := []any{st.Lane, st.Epoch, st.Delivered}
		if st.Position != nil {
			p, err := db.Of(st.Lane, st.Position, identity)
			if err != nil {
				return nil, err
			}
			if values = append(values, p.At); len(p.Open) > 0 {
				values = append(values, db.HolesText(p.Open).String)
			}
		}
		text, err := json.Marshal(values)
		if err != nil {
			return nil, err
		}
		if i > 0 && (size+len(text) > packets.Part || st.BootID != ordered[i-1].BootID) {
			end(ordered[i-1].BootID)
		}
		lanes, size = append(lanes, string(text)), size+len(text)
	}
	end(ordered[len(ordered)-1].BootID)
	return all, nil
}

// lost returns the lanes on which the call is not the last one that was made.
func (s *Store) lost(ctx context.Context, q db.Querier, identity, here string, mark int64, ordered []store.Settlement) ([]store.Lane, error) {
	var lanes []store.Lane
	for i := range ordered {
		lanes = append(lanes, ordered[i].Lane)
	}
	rows, err := q.QueryContext(ctx, `SELECT p.lane, p.settled_mark, `+here+` FROM postrider_progress p
		JOIN postrider_info WHERE p.pipe = ? AND p.lane IN (`+db.Numbers(lanes)+`)`, s.box.Pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	marks := map[store.Lane]int64{}
	for rows.Next() {
		var lane store.Lane
		var found string
		var by int64
		if err := rows.Scan(&lane, &by, &found); err != nil {
			return nil, err
		}
		if marks[lane] = by; identity != "" && found != identity {
			return nil, fmt.Errorf("mysql: settle: leased under %s, found %s: %w", identity, found, store.ErrIdentity)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(lanes, func(lane store.Lane) bool { return marks[lane] == mark }), nil
}

// markOf is a hash of whose settlements a call has, for which lanes and epochs, and of what they say: a call that is repeated
// unchanged has it again. It is one number for all lanes because each change of a lane writes it to the binlog twice, in the row before and in
// the row behind.
func markOf(ordered []store.Settlement) int64 {
	h := sha256.New()
	for i := range ordered {
		st := &ordered[i]
		fmt.Fprintf(h, "%q/%d/%016x;", st.BootID, st.Lane, st.Mark())
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil))) //nolint:gosec // all bits count
}

// consequences are what a settlement does beside its position, on condition that this
// call has moved the lane.
func (s *Store) consequences(ctx context.Context, q db.Querier, x *operations.Executor, call int64, st *store.Settlement) ([]db.Statement, error) {
	all, err := parking.Park(s.box.Pipe, st.Lane, call, st.Park)
	if err != nil {
		return nil, err
	}
	const atOnce = 1000 // numbers that one statement names
	for some := range slices.Chunk(st.Unpark, atOnce) {
		condition, args := ` WHERE k.pipe = ? AND k.seq IN (`+db.Numbers(some)+`) AND k.lane = ? AND p.settled_call = ?`, []any{s.box.Pipe, st.Lane, call}
		all = append(all, operations.Unparked(condition, db.Now, args...),
			db.Statement{Query: `DELETE k FROM postrider_parked k JOIN postrider_progress p ON p.pipe = k.pipe AND p.lane = k.lane` + condition, Args: args})
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
