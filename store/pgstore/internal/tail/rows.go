package tail

import (
	"bytes"
	"encoding/binary"
)

// Column is a column of the outbox that the log must bring for rows to go ahead.
type Column struct {
	Name string
	oid  uint32
}

// Columns returns those columns, in the order of a [Row].
func Columns() []Column {
	return []Column{
		{"seq", 20},
		{"id", 2950},
		{"topic", 25},
		{"key", 25},
		{"type", 25},
		{"payload", 17},
		{"content_type", 25},
		{"headers", 3802},
		{"version", 20},
		{"schema_version", 23},
		{"not_before", 1184},
		{"created_at", 1184},
	}
}

// Row has the values of a row in the server's binary format; nil is NULL.
type Row [][]byte

// Rows takes the rows of the log. A nil function is not called.
type Rows struct {
	// Opened: the stream begins, or what was told before counts no more. about is the answer of
	// AboutSQL from the server that sends it.
	Opened func(about []string) error
	Closed func()
	// Told: a transaction committed, in the order of commits. whole: these are all of its rows.
	Told     func(xid uint32, rows []Row, whole bool)
	AboutSQL string
}

// The most that is kept of one transaction. A larger one is told without its rows.
const (
	rowsMost     = 256
	rowBytesMost = 1 << 20
)

// gather keeps the rows of the transaction that arrives.
type gather struct {
	schema string // of the outbox; "": rows are not kept
	table  uint32 // the outbox, once it was described
	places []int  // column of the server's row by column of ours; nil: some are missing
	rows   []Row
	bytes  int
	whole  bool
}

func (g *gather) begin() { g.rows, g.bytes, g.whole = nil, 0, g.schema != "" }

// relation reads the description of a table, and reports whether it is that of the outbox.
func (g *gather) relation(m []byte) (ours bool, err error) {
	if len(m) < 4 {
		return false, errProtocol
	}
	table := binary.BigEndian.Uint32(m)
	names := bytes.SplitN(m[4:], []byte{0}, 3)
	if len(names) < 3 || len(names[2]) < 3 {
		return false, errProtocol
	}
	if g.schema == "" || string(names[0]) != g.schema || string(names[1]) != "outbox" {
		return false, nil
	}
	rest := names[2][1:] // behind the replica identity
	n := int(binary.BigEndian.Uint16(rest))
	rest = rest[2:]
	has := make(map[Column]int, n)
	for i := range n {
		if len(rest) < 1 {
			return false, errProtocol
		}
		name, more, ok := bytes.Cut(rest[1:], []byte{0}) // behind the flags
		if !ok || len(more) < 8 {
			return false, errProtocol
		}
		has[Column{string(name), binary.BigEndian.Uint32(more)}] = i
		rest = more[8:]
	}
	g.table, g.places = table, make([]int, 0, n)
	for _, c := range Columns() {
		at, ok := has[c]
		if !ok {
			g.places = nil
			break
		}
		g.places = append(g.places, at)
	}
	return true, nil
}

// row reads an inserted row.
func (g *gather) row(m []byte) error {
	if !g.whole { // nobody wants it, or it is too large
		return nil
	}
	if len(m) < 7 || m[4] != 'N' {
		return errProtocol
	}
	if g.places == nil || binary.BigEndian.Uint32(m) != g.table || len(g.rows) >= rowsMost || g.bytes+len(m) > rowBytesMost {
		g.rows, g.whole = nil, false
		return nil
	}
	g.bytes += len(m)
	rest := bytes.Clone(m[7:])
	values := make([][]byte, binary.BigEndian.Uint16(m[5:]))
	for i := range values {
		if len(rest) < 1 {
			return errProtocol
		}
		kind := rest[0]
		rest = rest[1:]
		if kind == 'n' {
			continue
		}
		if len(rest) < 4 {
			return errProtocol
		}
		size := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(size) > uint64(len(rest)) {
			return errProtocol
		}
		if kind != 'b' {
			g.rows, g.whole = nil, false
			return nil
		}
		values[i], rest = rest[:size:size], rest[size:]
	}
	row := make(Row, len(g.places))
	for i, at := range g.places {
		if at >= len(values) {
			return errProtocol
		}
		row[i] = values[at]
	}
	g.rows = append(g.rows, row)
	return nil
}

// Follow makes the bell pass on the rows of the log. It must be called before Wait.
func (b *Bell) Follow(r Rows) { b.follows = r }

// early begins or ends to pass on rows. Where commits wait for a standby, rows are in the log
// long before others may see them.
func (s *session) early(on bool) {
	s.turning.Lock()
	defer s.turning.Unlock()
	r := s.bell.follows
	if r.Told == nil || on == s.ahead.Load() || on && s.about == nil {
		return
	}
	s.ahead.Store(on) // first: what is told from Opened on must be passed on
	if !on || r.Opened(s.about) != nil {
		r.Closed()
		s.ahead.Store(false)
	}
}

// tells passes a transaction on.
func (s *session) tells(t *told) {
	if s.ahead.Load() {
		s.bell.follows.Told(t.xid, t.rows, t.whole)
	}
}

// shaped notes that the outbox was described. Again in a session, it means that the publication
// or the table may have changed, and that rows may be missing: none is passed on before the
// next look at the server.
func (s *session) shaped() {
	if s.shapes.Add(1) > 1 {
		s.early(false)
	}
}
