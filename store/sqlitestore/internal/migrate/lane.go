package migrate

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/postrider/postrider/store"
)

// The lane of a record is computed by SQLite itself, in a generated column, so
// that a plain INSERT gets the same one as a program. SQLite has no hash and a
// generated column has no loop; so the hash takes the last 24 and the first 8
// bytes of the key in hexadecimal, replaces the letters by digits, reads 16 of
// these at a time as a number, and mixes the four numbers and the length. Keys
// that do not differ in what is taken share a lane, which is never wrong, only
// less even. It is frozen for the life of an outbox.
const (
	hashTail  = 24
	hashHead  = 8
	hashChunk = 16         // digits of one number
	hashPrime = 2147483647 // 2^31 - 1: nothing below leaves 63 bits
	hashMix   = 48271
	// hashLetters are replaced, one by one, by hashDigits.
	hashLetters = "ABCDEF"
	hashDigits  = "738291"
)

// weights of the length, the numbers of the tail and that of the head.
func weights() [5]int64 { return [5]int64{104729, 15485863, 32452843, 49979687, 67867967} }

// laneExpression is the generated column's expression.
func laneExpression(lanes int) string {
	const subject = "CAST(CASE WHEN key = '' THEN lower(id) ELSE key END AS BLOB)"
	digits := func(part string) string {
		text := "hex(" + part + ")"
		for i := range len(hashLetters) {
			text = fmt.Sprintf("replace(%s, '%c', '%c')", text, hashLetters[i], hashDigits[i])
		}
		return text
	}
	tail := digits(fmt.Sprintf("substr(%s, -%d)", subject, hashTail))
	head := digits(fmt.Sprintf("substr(%s, 1, %d)", subject, hashHead))
	w := weights()
	terms := []string{fmt.Sprintf("length(%s) * %d", subject, w[0])}
	for i := range 2 * hashTail / hashChunk {
		terms = append(terms, fmt.Sprintf("CAST(substr(%s, %d, %d) AS INTEGER) %% %d * %d", tail, i*hashChunk+1, hashChunk, hashPrime, w[i+1]))
	}
	terms = append(terms, fmt.Sprintf("CAST(%s AS INTEGER) %% %d * %d", head, hashPrime, w[4]))
	return fmt.Sprintf("(((%s) %% %d * %d %% %d) >> 8) %% %d",
		strings.Join(terms, "\n        + "), hashPrime, hashMix, hashPrime, lanes)
}

// Lane is the lane of a key, or of a message without a key by its id, in an
// outbox of so many lanes: the same number that the table computes.
func Lane(key, id string, lanes int) store.Lane {
	if key == "" {
		key = strings.ToLower(id)
	}
	w := weights()
	sum := int64(len(key)) * w[0]
	tail := digitsOf(key[max(0, len(key)-hashTail):])
	for i := 0; i < len(tail); i += hashChunk {
		sum += number(tail[i:min(len(tail), i+hashChunk)]) % hashPrime * w[i/hashChunk+1]
	}
	sum += number(digitsOf(key[:min(len(key), hashHead)])) % hashPrime * w[4]
	return store.Lane(sum % hashPrime * hashMix % hashPrime >> 8 % int64(lanes))
}

func digitsOf(part string) string {
	text := strings.ToUpper(hex.EncodeToString([]byte(part)))
	return strings.Map(func(r rune) rune {
		if i := strings.IndexRune(hashLetters, r); i >= 0 {
			return rune(hashDigits[i])
		}
		return r
	}, text)
}

// number reads at most 16 characters, all of them digits.
func number(digits string) int64 {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0 // the empty text, as CAST has it
	}
	return n
}
