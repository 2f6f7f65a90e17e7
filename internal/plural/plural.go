// Package plural writes counted nouns for people.
package plural

import "fmt"

// Of returns n and the words that follow it: one after 1, many after every other number.
// Where many is left out, it is one with an s.
func Of[N ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n N, one string, many ...string) string {
	words := one + "s"
	switch {
	case n == 1:
		words = one
	case len(many) > 0:
		words = many[0]
	}
	return fmt.Sprintf("%d %s", n, words)
}
