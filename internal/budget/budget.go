// Package budget bounds what is asked for by number so that it stays within a
// number of bytes: the size of what comes is guessed by what came.
package budget

// A Budget guesses. The first guess is a mebibyte, so that a stream of large
// messages is met with caution; a larger message raises it at once, smaller ones
// halve it with each round. What follows many small messages may therefore be
// larger than asked for, once. It is not safe for concurrent use.
type Budget struct {
	Bytes int // that may be held at most
	guess int // bytes of one message
}

const firstGuess = 1 << 20

// Ask is how many of at most limit may be asked for while held bytes are in hand:
// 0 when it is full. One is always allowed where nothing is held.
func (b *Budget) Ask(limit, held int) int {
	switch room := b.Bytes - held; {
	case limit <= 0 || held > 0 && room <= 0:
		return 0
	default:
		if b.guess == 0 {
			b.guess = firstGuess
		}
		return min(limit, max(room/b.guess, 1))
	}
}

// Seen tells the largest of what a round brought, in bytes.
func (b *Budget) Seen(largest int) { b.guess = max(largest, b.guess/2, 1) }
