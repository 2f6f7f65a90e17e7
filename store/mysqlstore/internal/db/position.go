package db

import (
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// History is a short hash of an identity, never 0. A position contains it, so that one of another
// history cannot pass for one of this, whoever has leased meanwhile.
func History(identity string) uint32 { return max(1, crc32.ChecksumIEEE([]byte(identity))) }

// marked is the first byte of a position that tells its history.
const marked = 'm'

// Encode returns a position that callers keep, which tells the history it is of.
func Encode(p holes.Position, history uint32) store.Position {
	return append(binary.BigEndian.AppendUint32([]byte{marked}, history), p.Encode()...)
}

// Decode reads what Encode wrote. A position without a mark, as the tables have it, has the history 0:
// it is of the one in which it is read.
func Decode(b store.Position) (p holes.Position, history uint32, err error) {
	const head = 5
	if len(b) >= head && b[0] == marked {
		history, b = binary.BigEndian.Uint32(b[1:]), b[head:]
	}
	p, err = holes.Decode(b)
	return p, history, err
}

// Of returns a position of the identity given, and an error that matches store.ErrIdentity for one of
// another. Without an identity, any is returned.
func Of(lane store.Lane, b store.Position, identity string) (holes.Position, error) {
	p, history, err := Decode(b)
	if err != nil {
		return p, fmt.Errorf("lane %d: %w", lane, err)
	}
	if identity != "" && history != 0 && history != History(identity) {
		return p, fmt.Errorf("the position of lane %d is of another history of the database than %s: %w", lane, identity, store.ErrIdentity)
	}
	return p, nil
}

// HolesText is a set as the tables keep it: NULL if it is empty, which takes no byte in the binlog.
func HolesText(set holes.Set) sql.NullString {
	if len(set) == 0 {
		return sql.NullString{}
	}
	pairs := make([][2]int64, 0, len(set))
	for _, r := range set {
		pairs = append(pairs, [2]int64{r.First, r.Last})
	}
	text, _ := json.Marshal(pairs) // numbers always encode
	return sql.NullString{String: string(text), Valid: true}
}

// Position is a row of progress as a position.
func Position(pos int64, text sql.NullString) (holes.Position, error) {
	p := holes.Position{At: pos}
	if !text.Valid || text.String == "[]" {
		return p, nil
	}
	var pairs [][2]int64
	if err := json.Unmarshal([]byte(text.String), &pairs); err != nil {
		return p, fmt.Errorf("holes %q: %w", text.String, err)
	}
	for _, pair := range pairs {
		p.Open = append(p.Open, holes.Range{First: pair[0], Last: pair[1]})
	}
	return p, nil
}
