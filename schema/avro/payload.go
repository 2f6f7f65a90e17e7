package avro

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// Bounds of a payload.
const (
	maxDepth = 200
	maxEmpty = 100_000 // values without a byte, such as a list of nulls has
)

// decoder reads a datum in Avro's binary encoding.
type decoder struct {
	rest  []byte
	items int    // that are left
	keep  bool   // make the datum
	wrong string // the first thing that is wrong, with its place in the schema and no value
}

// decode reads a payload of a type. wrong is what the type has against it, without values of
// the payload; keep makes the datum.
func decode(n *node, payload []byte, keep bool) (v any, wrong string) {
	d := decoder{rest: payload, items: len(payload) + maxEmpty, keep: keep}
	v = d.value(n, "", 0)
	if d.wrong == "" && len(d.rest) > 0 {
		d.fail("", fmt.Sprintf("has %d bytes behind the end of the datum", len(d.rest)))
	}
	return v, d.wrong
}

func (d *decoder) fail(at, what string) {
	if d.wrong == "" {
		if at == "" {
			at = "the payload"
		}
		d.wrong = at + " " + what
	}
}

const cutOff = "is cut off"

func (d *decoder) take(n int64, at string) []byte {
	if n < 0 || n > int64(len(d.rest)) {
		d.fail(at, cutOff)
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) long(at string) int64 {
	n, size := binary.Varint(d.rest)
	if size <= 0 {
		d.fail(at, "is not a number of at most 64 bits")
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) text(at string) string {
	b := d.take(d.long(at), at)
	if !utf8.Valid(b) {
		d.fail(at, "is not UTF-8")
	}
	if !d.keep {
		return ""
	}
	return string(b)
}

func (d *decoder) value(n *node, at string, depth int) any {
	if depth > maxDepth {
		d.fail("", fmt.Sprintf("is nested more than %d levels deep", maxDepth))
	}
	if d.items--; d.items < 0 {
		d.fail("", fmt.Sprintf("has more than %d empty values", maxEmpty))
	}
	if d.wrong != "" {
		return nil
	}
	switch n.kind {
	case "boolean":
		b := d.take(1, at)
		if len(b) == 1 && b[0] > 1 {
			d.fail(at, "is not a boolean")
		}
		return len(b) == 1 && b[0] == 1
	case "int", "long":
		v := d.long(at)
		if n.kind == "int" && (v < math.MinInt32 || v > math.MaxInt32) {
			d.fail(at, "has more than 32 bits")
		}
		return v
	case "float":
		d.take(4, at)
		return float64(0)
	case "double":
		d.take(8, at)
		return float64(0)
	case "bytes":
		return d.take(d.long(at), at)
	case "fixed":
		return d.take(int64(n.size), at)
	case "string":
		return d.text(at)
	case "enum":
		i := d.long(at)
		if i < 0 || i >= int64(len(n.symbols)) {
			d.fail(at, "is not a symbol of the enum "+n.name)
			return nil
		}
		return n.symbols[i]
	case "union":
		i := d.long(at)
		if i < 0 || i >= int64(len(n.branches)) {
			d.fail(at, "is not a branch of the union")
			return nil
		}
		v := d.value(n.branches[i], at, depth+1)
		return chosen{int(i), v}
	case "array", "map":
		return d.list(n, at, depth)
	case "record":
		var all []any
		for i := range n.fields {
			v := d.value(n.fields[i].node, at+"/"+n.fields[i].name, depth+1)
			if d.keep {
				all = append(all, v)
			}
		}
		return all
	}
	return nil
}

func (d *decoder) list(n *node, at string, depth int) any {
	var items []any
	var entries []entry
	at += map[string]string{"array": "/items", "map": "/values"}[n.kind]
	for d.wrong == "" {
		count := d.long(at)
		if count == 0 {
			break
		}
		if count < 0 {
			if count = -count; count < 0 {
				d.fail(at, "has an impossible number of items")
			}
			if size := d.long(at); size < 0 || size > int64(len(d.rest)) {
				d.fail(at, cutOff)
			}
		}
		for i := int64(0); i < count && d.wrong == ""; i++ {
			var key string
			if n.kind == "map" {
				key = d.text(at)
			}
			v := d.value(n.of, at, depth+1)
			switch {
			case !d.keep:
			case n.kind == "map":
				entries = append(entries, entry{key, v})
			default:
				items = append(items, v)
			}
		}
	}
	if n.kind == "map" {
		return entries
	}
	return items
}
