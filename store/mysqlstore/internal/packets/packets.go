// Package packets sends the statements of a transaction in few packets, none larger than the server
// accepts.
package packets

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

const (
	// Part is how many bytes of values one statement combines at most. Larger values have a statement of
	// their own.
	Part = 48 << 10
	// small fits the packets of a server that can hold an outbox: its limit need not be asked for.
	small = 64 << 10
	// most is the size of the largest packet. The driver and the server copy each packet.
	most = 4 << 20
	// spare is what a packet has beside its statements. The driver stays below the limit.
	spare = 64
)

// Bytes returns the most bytes that values take in the text of a statement: each byte of a text may be escaped.
func Bytes(args []any) (n int) {
	const number = 24 // the longest number, NULL, or the quotes of a text, and a comma
	for _, arg := range args {
		n += number
		switch v := arg.(type) {
		case string:
			n += 2 * len(v)
		case []byte:
			n += 2 * len(v)
		}
	}
	return n
}

// Transact runs statements in one transaction of a connection: in one packet where it has room for them,
// so that a process that is stopped leaves nothing open. A statement that is larger than a
// packet goes alone: the driver then sends its values in pieces. An error rolls the transaction back.
func Transact(ctx context.Context, conn *sql.Conn, statements []db.Statement) error {
	all := slices.Concat([]db.Statement{{Query: "START TRANSACTION"}}, statements, []db.Statement{{Query: "COMMIT"}})
	limit, err := limitOf(ctx, conn, all)
	if err != nil {
		return err
	}
	for len(all) > 0 && err == nil {
		n, size := 1, sizeOf(&all[0])
		for ; n < len(all); n++ {
			if size += sizeOf(&all[n]); size > limit {
				break
			}
		}
		err = send(ctx, conn, all[:n])
		all = all[n:]
	}
	if err != nil {
		if _, rerr := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); rerr != nil && !errors.Is(rerr, sql.ErrConnDone) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// limitOf returns how many bytes of the statements one packet of the connection may have.
func limitOf(ctx context.Context, conn *sql.Conn, all []db.Statement) (limit int, err error) {
	size := 0
	for i := range all {
		size += sizeOf(&all[i])
	}
	if size <= small {
		return small, nil
	}
	err = conn.QueryRowContext(ctx, `SELECT @@max_allowed_packet`).Scan(&limit)
	return min(limit-spare, most), err
}

func sizeOf(st *db.Statement) int { return len(st.Query) + len(";\n") + Bytes(st.Args) }

// send sends statements in one packet. One that fails ends those behind it.
func send(ctx context.Context, conn *sql.Conn, all []db.Statement) error {
	texts := make([]string, 0, len(all))
	var args []any
	for _, st := range all {
		texts, args = append(texts, st.Query), append(args, st.Args...)
	}
	_, err := conn.ExecContext(ctx, strings.Join(texts, ";\n"), args...)
	return err
}
