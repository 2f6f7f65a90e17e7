package answer

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Books is what `audit --output json` prints: one object per look.
type Books struct {
	Time       time.Time     `json:"time"`
	Difference int64         `json:"difference"`
	Full       bool          `json:"full"`
	Opened     bool          `json:"opened"`
	Counted    int64         `json:"rows_counted"`
	Pipes      []Book        `json:"pipes"`
	Lanes      []Book        `json:"lanes,omitempty"` // those that differ
	Missing    []ops.LaneGap `json:"missing,omitempty"`
}

// Book is the book of a lane, or of all lanes of a pipe.
type Book struct {
	Pipe       string      `json:"pipe"`
	Lane       *store.Lane `json:"lane,omitempty"`
	Committed  int64       `json:"committed"`
	Sent       int64       `json:"sent"`
	Parked     int64       `json:"parked"`
	Discarded  int64       `json:"discarded"`
	Replayed   int64       `json:"replayed"`
	Pending    int64       `json:"pending"`
	Behind     bool        `json:"pending_is_lower_bound,omitempty"`
	Difference int64       `json:"difference"`
	After      int64       `json:"window_after,string,omitempty"`
	To         int64       `json:"window_to,string,omitempty"`
	IDs        []string    `json:"candidate_ids,omitempty"`
	Unused     []int64     `json:"candidate_numbers,omitempty"`
}

func (b *Book) add(l *Book) {
	b.Committed += l.Committed
	b.Sent += l.Sent
	b.Parked += l.Parked
	b.Discarded += l.Discarded
	b.Replayed += l.Replayed
	b.Pending += l.Pending
	b.Behind = b.Behind || l.Behind
	b.Difference += l.Difference
}

// Text writes the books for a person.
func (b *Books) Text(w *tabwriter.Writer) {
	output.Row(w, "PIPE", "COMMITTED", "SENT", "PARKED", "DISCARDED", "REPLAYED", "PENDING", "DIFFERENCE")
	for _, p := range b.Pipes {
		pending := fmt.Sprint(p.Pending)
		if p.Behind {
			pending += " or more"
		}
		output.Row(w, p.Pipe, p.Committed, p.Sent, p.Parked, p.Discarded, p.Replayed, pending, p.Difference)
	}
	for _, l := range b.Lanes {
		output.Row(w)
		output.Row(w, fmt.Sprintf("lane %d of pipe %s: %s", *l.Lane, l.Pipe, excess(l.Difference)))
		output.Row(w, fmt.Sprintf("  between the numbers %d and %d", l.After+1, l.To))
		output.Row(w, "  messages there: "+strings.Join(l.IDs, " "))
		output.Row(w, "  numbers without a row: "+numbers(l.Unused))
	}
	for _, g := range b.Missing {
		output.Row(w)
		output.Row(w, fmt.Sprintf("lane %d: %s that retention did not remove", g.Lane, plural.Of(g.Rows, "row is gone", "rows are gone")))
		output.Row(w, "  numbers without a row: "+numbers(g.Unused))
	}
}

// excess says which book has more.
func excess(n int64) string {
	if n > 0 {
		return fmt.Sprintf("%d committed messages are neither sent nor parked nor pending", n)
	}
	return fmt.Sprintf("%d more were sent than committed", -n)
}

// numbers lists those that nobody used: rolled back, or removed.
func numbers(unused []int64) string {
	if len(unused) == 0 {
		return "none"
	}
	text := make([]string, len(unused))
	for i, n := range unused {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, " ")
}

// BooksOf is the answer about one look at the books.
func BooksOf(b ops.Books) Books {
	answer := Books{Time: b.At, Difference: b.Difference(), Full: b.Full, Opened: b.Opened, Counted: b.Counted, Missing: b.Missing, Pipes: []Book{}}
	for _, l := range b.Lanes {
		one := Book{
			l.Pipe, &l.Lane, l.Committed, l.Sent, l.Parked, l.Gone, l.Again, l.Pending, l.Behind, l.Difference, l.From, l.To, l.IDs, l.Unused,
		}
		if l.Difference != 0 {
			answer.Lanes = append(answer.Lanes, one)
		}
		n := len(answer.Pipes)
		if n == 0 || answer.Pipes[n-1].Pipe != l.Pipe {
			answer.Pipes = append(answer.Pipes, Book{Pipe: l.Pipe})
			n++
		}
		answer.Pipes[n-1].add(&one)
	}
	return answer
}
