package registry

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/ast"
)

// Bounds of what a payload's frame and a Protobuf schema may hold.
const (
	maxDepth    = 50 // messages inside one another
	maxBrackets = 2 * maxDepth
	maxSchema   = 1 << 20
)

var errIndex = errors.New("the index of a Protobuf message is cut off, too long or not in its shortest spelling")

// FrameID returns the id of the schema that a payload in Confluent's format begins with,
// and the rest of it. A payload without a frame returns false.
func FrameID(payload []byte) (id uint32, rest []byte, ok bool) {
	if len(payload) < 5 || payload[0] != 0 {
		return 0, payload, false
	}
	return binary.BigEndian.Uint32(payload[1:]), payload[5:], true
}

// MessageIndex returns the index of a Protobuf message, which stands behind the id: the
// numbers of the message and of those around it, each among its siblings. Both
// spellings of the first message, a single 0 and the list of one 0, are read.
// Numbers spelled longer than needed are refused: a frame then has at most the size that
// package envelope accepts.
func MessageIndex(b []byte) (index []int, rest []byte, err error) {
	n, size := varint(b)
	if size <= 0 || n < 0 || n > maxDepth {
		return nil, b, errIndex
	}
	if n == 0 {
		return []int{0}, b[size:], nil
	}
	rest = b[size:]
	for range n {
		at, size := varint(rest)
		if size <= 0 || at < 0 || at > maxSchema {
			return nil, b, errIndex
		}
		index, rest = append(index, int(at)), rest[size:]
	}
	return index, rest, nil
}

// varint reads a number in its shortest spelling; size 0 means that b has none.
func varint(b []byte) (n int64, size int) {
	n, size = binary.Varint(b)
	if size > 1 && b[size-1] == 0 { // the last byte adds nothing
		return 0, 0
	}
	return n, size
}

// appendIndex is the inverse of MessageIndex, in the shorter spelling.
func appendIndex(b []byte, index []int) []byte {
	if len(index) == 1 && index[0] == 0 {
		return append(b, 0)
	}
	b = binary.AppendVarint(b, int64(len(index)))
	for _, at := range index {
		b = binary.AppendVarint(b, int64(at))
	}
	return b
}

// guid returns the bytes of a GUID in its text.
func guid(text string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("the registry's GUID %.40q is not one", text)
	}
	return b, nil
}

// indexesOf returns the indexes of the messages in the text of a Protobuf schema, by full name, and
// the number of those at the top. A schema with one message at the top needs no name.
func indexesOf(text string) (all map[string][]int, top int, err error) {
	file, err := parse(text)
	if err != nil {
		return nil, 0, fmt.Errorf("the Protobuf schema cannot be read: %w", err)
	}
	all = map[string][]int{}
	eachMessage(file, func(name string, index []int) {
		if len(index) == 1 {
			top++
		}
		all[name] = index
	})
	if top == 0 {
		return nil, 0, errors.New("the Protobuf schema has no message")
	}
	return all, top, nil
}

// eachMessage visits the messages of a file with their full names and indexes, down to maxDepth levels.
func eachMessage(file *ast.FileNode, visit func(name string, index []int)) {
	pkg := ""
	var top []*ast.MessageNode
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.PackageNode:
			pkg = string(d.Name.AsIdentifier()) + "."
		case *ast.MessageNode:
			top = append(top, d)
		}
	}
	var all func(prefix string, in []*ast.MessageNode, at []int)
	all = func(prefix string, in []*ast.MessageNode, at []int) {
		for i, m := range in {
			name, here := prefix+m.Name.Val, slices.Concat(at, []int{i})
			var inside []*ast.MessageNode
			for _, d := range m.Decls {
				if d, ok := d.(*ast.MessageNode); ok {
					inside = append(inside, d)
				}
			}
			visit(name, here)
			if len(here) < maxDepth { // a frame has no more indexes, and names below grow with each level
				all(name+".", inside, here)
			}
		}
	}
	all(pkg, top, nil)
}
