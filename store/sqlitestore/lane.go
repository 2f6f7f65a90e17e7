package sqlitestore

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
)

// The lane of a record is computed by SQLite itself, in a generated column, so
// that a plain INSERT gets the same one as a program. SQLite has no hash and a
// generated column has no loop, so the hash is a sum, over fixed places of the
// key, of the code point there times 31^i: the last 32 characters, the first
// 16, and the length. Keys that differ only between those places share a lane,
// which is never wrong, only less even. It is frozen for the life of an outbox.
const (
	hashTail  = 32
	hashHead  = 16
	hashPrime = 2147483647 // 2^31 - 1: no product below leaves 63 bits
	hashMix   = 48271
)

// weight is 31^i modulo the prime, spread over all of its bits.
func weight(i int) int64 {
	w := int64(hashMix)
	for range i + 1 {
		w = w * 31 % hashPrime
	}
	return w
}

// laneExpression is the generated column's expression.
func laneExpression(lanes int) string {
	const subject = "(CASE WHEN key = '' THEN lower(id) ELSE key END)"
	terms := []string{fmt.Sprintf("length(%s) * %d", subject, weight(0))}
	for i := 1; i <= hashTail; i++ {
		terms = append(terms, fmt.Sprintf("coalesce(unicode(substr(%s, -%d, 1)), 0) * %d", subject, i, weight(i)))
	}
	for i := 1; i <= hashHead; i++ {
		terms = append(terms, fmt.Sprintf("coalesce(unicode(substr(%s, %d, 1)), 0) * %d", subject, i, weight(hashTail+i)))
	}
	return fmt.Sprintf("(((%s) %% %d * %d %% %d) >> 8) %% %d",
		strings.Join(terms, "\n        + "), hashPrime, hashMix, hashPrime, lanes)
}

// Lane is the lane of a key, or of a message without a key by its id, in an
// outbox of so many lanes: the same number that the table computes.
func Lane(key, id string, lanes int) store.Lane {
	if key == "" {
		key = strings.ToLower(id)
	}
	text := []rune(key)
	n := len(text)
	sum := int64(n) * weight(0)
	for i := 1; i <= min(hashTail, n); i++ {
		sum += int64(text[n-i]) * weight(i)
	}
	for i := 1; i <= min(hashHead, n); i++ {
		sum += int64(text[i-1]) * weight(hashTail+i)
	}
	return store.Lane(sum % hashPrime * hashMix % hashPrime >> 8 % int64(lanes))
}
