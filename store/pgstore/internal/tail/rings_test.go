package tail

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store/internal/xids"
)

// looks returns what a snapshot saw that ran these transactions.
func looks(next uint64, running ...uint64) *xids.Look {
	k := &xids.Look{Next: next}
	for _, x := range running {
		k.Running = append(k.Running, xids.Range{Lo: x, Hi: x + 1})
	}
	return k
}

// A commit is told before its rows are visible: the lane that looked too early is read again,
// until it saw the end, whatever other lanes saw meanwhile.
//
// Promises: S
func TestARingBeforeVisibility(t *testing.T) {
	r, now := newRings(), time.Now()
	r.now = func() time.Time { return now }
	again := func(want bool) time.Duration {
		t.Helper()
		d, ok := r.pause()
		if ok != want {
			t.Fatalf("a lane must be read again: %v, want %v", ok, want)
		}
		return d
	}
	early, other := r.begin(), r.begin()
	r.add(100)
	again(false) // the ring itself wakes the relay
	r.end(early, []int16{1, 2}, looks(101, 100), false)
	if d := again(true); d != firstLook {
		t.Errorf("the first look is after %v", d)
	}
	r.end(other, []int16{3}, looks(101), false) // proves nothing for lanes 1 and 2
	for want := firstLook; want < lastLook/2; want *= 2 {
		if d := again(true); d != want {
			t.Fatalf("the next look is after %v, want %v", d, want)
		}
		now = now.Add(want)
		r.looked()
	}
	one := r.begin()
	r.end(one, []int16{1}, looks(102), false)
	again(true)
	two := r.begin()
	r.end(two, []int16{2}, looks(102), false)
	again(false)
	if len(r.kept) != 0 {
		t.Errorf("%d rings are kept for nothing", len(r.kept))
	}
}

// A read that began before another one saw the commit may still have missed it.
func TestARingOutlivesRunningReads(t *testing.T) {
	r := newRings()
	late := r.begin()
	r.add(100)
	r.end(r.begin(), []int16{1}, looks(101), false)
	r.end(late, []int16{2}, looks(100), false) // its snapshot is older
	if _, ok := r.pause(); !ok {
		t.Error("lane 2 is not read again")
	}
	r.end(r.begin(), []int16{2}, nil, true) // every number is accounted for
	if _, ok := r.pause(); ok || len(r.kept) > 0 {
		t.Error("a quiet read does not answer the ring")
	}
}

// Ids have 32 bits in the log and 64 in a snapshot. Rings that no read answers are forgotten.
func TestRingsAreBounded(t *testing.T) {
	for _, c := range []struct {
		xid   uint32
		look  *xids.Look
		ended bool
	}{
		{5, looks(1<<32 + 6), true},
		{5, looks(1<<32+6, 1<<32+5), false},
		{1<<32 - 1, looks(1<<32 + 6), true},
		{7, looks(1<<33 - 2), false}, // the next era
		{100, looks(100), false},
	} {
		if k := (&ring{xid: c.xid}); k.ended(c.look) != c.ended {
			t.Errorf("%d in %+v: ended is %v", c.xid, c.look, !c.ended)
		}
	}
	r, now := newRings(), time.Now()
	r.now = func() time.Time { return now }
	for i := range uint32(3 * ringsMost) {
		r.add(i + 10)
	}
	if len(r.kept) > ringsMost {
		t.Errorf("%d rings are kept", len(r.kept))
	}
	now = now.Add(2 * ringAge)
	r.end(r.begin(), nil, nil, false)
	if len(r.kept) != 0 {
		t.Errorf("%d old rings are kept", len(r.kept))
	}
	r.add(50)
	r.end(r.begin(), []int16{1}, looks(51, 50), false)
	for d, ok := r.pause(); ok; d, ok = r.pause() {
		if d > 2*lastLook {
			t.Fatalf("a look is due in %v", d)
		}
		now = now.Add(d)
		r.looked()
	}
}

func wal(body ...byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{'w'}, 7), append(make([]byte, 16), body...)...)
}

// Every transaction rings once, at its commit. What cannot be read ends the session.
func TestDecode(t *testing.T) {
	begin := append(append([]byte{'B'}, make([]byte, 16)...), 0, 0, 0, 9)
	commit := append([]byte{'C'}, make([]byte, 25)...)
	start, stop := []byte{'S', 0, 0, 0, 8, 1}, []byte{'E'}
	last := append([]byte{'c', 0, 0, 0, 8}, make([]byte, 25)...)
	insert, streamed := []byte{'I', 0, 0, 0, 1}, []byte{'I', 0, 0, 0, 8, 0, 0, 0, 1}
	alive := append([]byte{'k'}, make([]byte, 17)...)
	var d decoder
	var rung []uint32
	for _, m := range [][]byte{wal(start...), wal(streamed...), wal(stop...), alive, wal(begin...), wal(insert...), wal(commit...), wal(last...)} {
		got, err := d.decode(m)
		if err != nil {
			t.Fatal(err)
		}
		if got.kind == committed {
			rung = append(rung, got.xid)
		}
	}
	if !slices.Equal(rung, []uint32{9, 8}) {
		t.Errorf("rung %v", rung)
	}
	for _, bad := range [][]byte{nil, {'x'}, {'k', 1}, {'w'}, wal(), wal('?'), wal('C'), wal(commit...), wal(commit[:10]...), wal('I')} {
		if _, err := new(decoder).decode(bad); !errors.Is(err, errProtocol) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Of a transaction that the server streams nothing is kept: it is told without its rows. Neither is
// anything kept of one that turned out too large. The next one is told with its own rows.
//
// Promises: G, O
func TestALargeTransactionKeepsNothing(t *testing.T) {
	var values []string
	for _, c := range Columns() {
		values = append(values, c.Name)
	}
	begin, commit := wal(append([]byte{'B'}, make([]byte, 20)...)...), wal(append([]byte{'C'}, make([]byte, 25)...)...)
	streamed := wal(append([]byte{'I', 0, 0, 0, 8}, insert(9, values...)[26:]...)...)
	d := decoder{gather: gather{schema: "box"}}
	feed := func(m []byte) told {
		t.Helper()
		got, err := d.decode(m)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	small := func() {
		t.Helper()
		feed(begin)
		feed(framed(insert(9, values...)))
		if got := feed(commit); !got.whole || len(got.rows) != 1 {
			t.Errorf("the next transaction has %d rows, whole %v", len(got.rows), got.whole)
		}
	}
	feed(begin)
	feed(framed(relation(Columns()...)))
	feed(commit)
	small()
	feed(wal('S', 0, 0, 0, 8, 1))
	for range 10 * rowsMost {
		feed(streamed)
	}
	feed(wal('E'))
	small() // others commit between its parts
	feed(wal('S', 0, 0, 0, 8, 0))
	feed(streamed)
	feed(wal('E'))
	if got := feed(wal(append([]byte{'c', 0, 0, 0, 8}, make([]byte, 25)...)...)); got.kind != committed || got.xid != 8 || got.whole || len(got.rows) > 0 {
		t.Errorf("a streamed transaction is told as %+v", got)
	}
	small()
	feed(begin)
	for range 10 * rowsMost {
		feed(framed(insert(9, values...)))
		if n := len(d.gather.rows); n > rowsMost || d.gather.bytes > rowBytesMost {
			t.Fatalf("%d rows, %d bytes are kept", n, d.gather.bytes)
		}
	}
	if n := len(d.gather.rows); n > 0 {
		t.Errorf("%d rows are kept of a transaction that is too large", n)
	}
	feed(commit)
	small()
}

// No message of a server makes the decoder panic, or ring without a commit.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("k"), []byte("w"))
	f.Add(wal('B', 1), wal('C', 2))
	f.Add(append(make([]byte, 8), 'k'), wal('S', 0, 0, 0, 1, 1))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		d := decoder{gather: gather{schema: "box"}}
		for _, m := range [][]byte{one, two} {
			got, err := d.decode(m)
			if err != nil && !errors.Is(err, errProtocol) {
				t.Error(err)
			}
			if got.kind == committed && (err != nil || m[0] != 'w' || m[25] != 'C' && m[25] != 'c') {
				t.Errorf("%q rings", m)
			}
		}
	})
}

// Names that would make the relay a synchronous standby are found as the server finds them.
func TestStandbyNamed(t *testing.T) {
	for list, want := range map[string]string{
		"": "", "*": "*", "FIRST 2 (a, *)": "*", "ANY 1 (a,b)": "", `"postrider tail"`: "postrider tail",
		`2 (s1, "Postrider TAIL")`: "Postrider TAIL", "postrider, tail": "", `"a""*", b`: "", "pg1,pg2": "",
	} {
		if got := standbyNamed(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// relation describes the outbox with these columns, and insert is a row of them, all of them
// numbers.
func relation(columns ...Column) []byte {
	b := append([]byte{'R', 0, 0, 0, 9}, "box\x00outbox\x00d"...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(columns)))
	for _, c := range columns {
		b = append(append(b, 0), c.Name...)
		b = binary.BigEndian.AppendUint32(append(b, 0), c.oid)
		b = append(b, 0, 0, 0, 0)
	}
	return append(make([]byte, 25), b...)
}

func insert(table byte, values ...string) []byte {
	b := []byte{'I', 0, 0, 0, table, 'N', 0, byte(len(values))}
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(append(b, 'b'), uint32(len(v)))
		b = append(b, v...)
	}
	return append(make([]byte, 25), b...)
}

func framed(m []byte) []byte { m[0] = 'w'; return m }

// A transaction is told with its rows, by name of the columns; without them if one of them is
// missing, of another table, or too much.
//
// Promises: O, G
func TestRowsOfATransaction(t *testing.T) {
	reversed := append([]Column{{"more", 1}}, Columns()...)
	slices.Reverse(reversed)
	var values []string
	for _, c := range reversed {
		values = append(values, c.Name)
	}
	for name, c := range map[string]struct {
		relation []byte
		rows     [][]byte
		whole    int // rows, -1: unknown
	}{
		"reversed":      {relation(reversed...), [][]byte{insert(9, values...), insert(9, values...)}, 2},
		"none":          {relation(reversed...), nil, 0},
		"numbers alone": {relation(Columns()[:1]...), [][]byte{insert(9, "12345678")}, -1},
		"other type":    {relation(append([]Column{{"seq", 23}}, Columns()[1:]...)...), [][]byte{insert(9, values[1:]...)}, -1},
		"other table":   {relation(reversed...), [][]byte{insert(8, values...)}, -1},
		"not described": {nil, [][]byte{insert(9, values...)}, -1},
		"as many":       {relation(reversed...), slices.Repeat([][]byte{insert(9, values...)}, rowsMost), rowsMost},
		"too many":      {relation(reversed...), slices.Repeat([][]byte{insert(9, values...)}, rowsMost+1), -1},
		"too large":     {relation(reversed...), [][]byte{insert(9, values...), insert(9, append(slices.Clone(values[1:]), strings.Repeat("x", rowBytesMost))...)}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			d := decoder{gather: gather{schema: "box"}}
			feed := func(m []byte) told {
				t.Helper()
				got, err := d.decode(framed(m))
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			feed(wal(append([]byte{'B'}, make([]byte, 20)...)...))
			if c.relation != nil && feed(c.relation).kind != described {
				t.Error("the outbox was not described")
			}
			for _, row := range c.rows {
				feed(row)
			}
			got := feed(wal(append([]byte{'C'}, make([]byte, 25)...)...))
			if n := len(got.rows); c.whole < 0 && (got.whole || n > 0) || c.whole >= 0 && (!got.whole || n != c.whole) {
				t.Errorf("%d rows, whole %v", n, got.whole)
			}
			for _, row := range got.rows {
				for i, want := range Columns() {
					if string(row[i]) != want.Name {
						t.Errorf("column %s has %q", want.Name, row[i])
					}
				}
			}
		})
	}
	for n := range len(insert(9, values...)) - 25 {
		d := decoder{gather: gather{schema: "box"}}
		_, _ = d.decode(wal(append([]byte{'B'}, make([]byte, 20)...)...))
		_, _ = d.decode(framed(relation(reversed...)))
		if _, err := d.decode(framed(insert(9, values...)[:25+n+1])); n+26 < len(insert(9, values...)) && !errors.Is(err, errProtocol) {
			t.Errorf("a row cut at %d: %v", n, err)
		}
	}
}
