// Package brackets measures the text of a Protobuf schema before a parser that recurses reads it.
package brackets

import "bytes"

// Depth returns how deep the brackets of a text nest, outside of its strings and comments.
func Depth(text []byte) int {
	deep, most := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '{', '[', '(', '<':
			deep++
			most = max(most, deep)
		case '}', ']', ')', '>':
			deep = max(deep-1, 0)
		case '"', '\'':
			for i++; i < len(text) && text[i] != c && text[i] != '\n'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '/':
			rest := text[i:]
			switch {
			case bytes.HasPrefix(rest, []byte("//")):
				if at := bytes.IndexByte(rest, '\n'); at >= 0 {
					i += at
				} else {
					return most
				}
			case bytes.HasPrefix(rest, []byte("/*")):
				at := bytes.Index(rest[2:], []byte("*/"))
				if at < 0 {
					return most
				}
				i += at + 3
			}
		}
	}
	return most
}
