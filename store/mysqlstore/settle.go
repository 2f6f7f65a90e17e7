package mysqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
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
	// What a call does beside the positions it does to the lanes that carry its number.
	call := rand.Int64()
	fence, err := s.fence(identity, here, call, ordered)
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
		return s.lost(ctx, conn, identity, here, ordered)
	}
	if err := packets.Transact(ctx, conn, append(fence, rest...)); err != nil {
		return nil, err
	}
	return s.lost(ctx, conn, identity, here, ordered)
}

// fence moves the lanes that are the caller's, at the epoch that he knows, and no others.
// It takes several statements where the lanes are many or their positions long.
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
			pos, open = p.At, db.HolesText(p.Open)
		}
		values := []any{st.Lane, st.Epoch, st.BootID, pos, open, st.Delivered, signature(st)}
		more := packets.Bytes(values)
		if len(parts) > 0 && size+more > packets.Part {
			end()
		}
		// The first part names the columns: MariaDB writes the text to its binlog, beside the rows.
		part := `SELECT ?,?,?,?,?,?,?`
		if len(parts) == 0 {
			part = `SELECT ? AS lane, ? AS epoch, ? AS owner, ? AS pos, ? AS holes, ? AS delivered, ? AS mark`
		}
		parts, args, size = append(parts, part), append(args, values...), size+more
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
