// Package sizing estimates what an outbox and its consumers take on PostgreSQL, by the
// rules by which PostgreSQL stores rows.
package sizing

import (
	"fmt"
	"time"
)

// Workload is what is written, and for how long it stays.
type Workload struct {
	Rate      float64       // messages per second, on average over the retention
	Bytes     int64         // of a payload as it is stored
	Key       int64         // bytes of a key
	Names     int64         // bytes of topic, type and content type together
	Headers   int64         // bytes of the headers as JSON, 0 for none
	Retention time.Duration // of settled messages
	Lanes     int64
	Consumers int64         // consumers with an inbox on PostgreSQL
	Horizon   time.Duration // for how long a consumer keeps its claims
	Relays    int64
}

// Estimate is what a workload takes. Sizes are bytes.
type Estimate struct {
	Messages int64 `json:"messages"` // in the outbox

	Rows     int64 `json:"rows_bytes"` // of the outbox, with payloads stored out of line
	Indexes  int64 `json:"indexes_bytes"`
	Progress int64 `json:"progress_bytes"`  // with the rows that await autovacuum
	Dead     int64 `json:"dead_rows_bytes"` // removed by retention, not yet vacuumed
	Outbox   int64 `json:"outbox_bytes"`    // the sum

	Claims       int64 `json:"inbox_claims"` // of all consumers
	Inbox        int64 `json:"inbox_bytes"`
	InboxMessage int64 `json:"inbox_bytes_per_message"`

	WAL         int64 `json:"wal_bytes_per_second"` // without images of pages after checkpoints
	Connections int64 `json:"relay_connections"`
	Memory      int64 `json:"relay_payload_bytes_in_memory"` // of each relay

	Advice []string `json:"advice"`
}

// How PostgreSQL stores rows, on pages of 8 KiB.
const (
	pageSize  = 8192
	pageRoom  = pageSize - 24
	pointer   = 4    // of a row or an index entry in its page
	rowHeader = 23   // before the bitmap of NULLs
	toastAt   = 2032 // a larger row moves its largest column out of line
	chunk     = 1996 // of such a column
	outOfLine = 18   // what stays in the row
)

// How full inserts leave the pages of an index, in percent.
const (
	ascending = 90 // at its end only
	byLane    = 72 // at the end of each lane, within the index
)

// settlement is the size of a row of progress with its index entry.
const settlement = 185

func align(n, to int64) int64 { return (n + to - 1) / to * to }

// text is the size of a value of variable length, which begins at an offset.
func text(at, n int64) int64 {
	if n < 127 {
		return at + 1 + n
	}
	return align(at, 4) + 4 + n
}

// perPage spreads a page over the rows that fit into it.
func perPage(row int64) float64 {
	row = align(row, 8) + pointer
	return pageSize / float64(max(pageRoom/row, 1))
}

// entry is the size of an index entry, on pages filled to a percentage.
func entry(columns, fill int64) float64 {
	return float64(8+align(columns, 8)+pointer) * 100 / float64(fill)
}

// outboxRow is the size of a row of the outbox, and of its payload out of line.
func (w Workload) outboxRow() (row, aside float64) {
	at := align(rowHeader+2, 8) // fifteen columns, two of them NULL
	at += 8 + 8 + 8             // xid, seq, created_at
	at += 8 + 4 + 16 + 2        // version, schema_version, id, lane
	at += 4 + w.Names + w.Key   // four texts, each with a byte of its own
	at = text(at, 4+w.Headers)  // jsonb: a word, and less or more than the text
	if whole := text(at, w.Bytes); whole <= toastAt {
		return perPage(whole), 0
	}
	chunks := (w.Bytes + chunk - 1) / chunk
	return perPage(at + outOfLine), w.chunkPages() + float64(chunks)*entry(8, ascending)
}

// chunkPages is the size of a payload out of line: a page with a last chunk, which is small,
// often has no room for a fourth whole one.
func (w Workload) chunkPages() float64 {
	const payloads = 100
	var pages, room int64
	for range payloads {
		for left := w.Bytes; left > 0; left -= chunk {
			row := align(align(rowHeader, 8)+8+4+min(left, chunk), 8) + pointer
			if row > room {
				pages, room = pages+1, pageRoom
			}
			room -= row
		}
	}
	return float64(pages*pageSize) / payloads
}

// inboxRow is the size of a claim with its index entries.
func (w Workload) inboxRow() float64 {
	const id, name = 36, 8 // a UUID and the name of a consumer
	at := align(rowHeader+1, 8)
	at += 1 + name + 1 + id + 2 + w.Names + 1 // and the outcome
	at = align(at, 8) + 8
	return perPage(at) + entry(1+name+1+id, ascending) + entry(align(1+name, 8)+8, ascending)
}

// Estimate returns what the workload takes once the retention has passed for the first time.
func (w Workload) Estimate() Estimate {
	n := w.Rate * w.Retention.Seconds()
	row, aside := w.outboxRow()
	keys := entry(2+8, byLane) + entry(16, ascending)
	e := Estimate{
		Messages: int64(n),
		Rows:     int64(n * (row + aside)),
		Indexes:  int64(n * keys),
	}
	// A settlement has at least one message. The rows of a minute await autovacuum.
	const most = 1000 // settlements a second
	e.Progress = int64(settlement * (64*float64(w.Lanes) + 60*min(w.Rate, most)))
	// Autovacuum works when a twentieth of the rows is new, and as many are gone then.
	e.Dead = (e.Rows + e.Indexes) / 20
	e.Outbox = e.Rows + e.Indexes + e.Progress + e.Dead

	claims := w.Rate * w.Horizon.Seconds() * float64(w.Consumers)
	e.Claims, e.InboxMessage = int64(claims), int64(w.inboxRow())
	e.Inbox = int64(claims * w.inboxRow())

	e.WAL = int64(w.Rate * w.wal(row))
	e.Connections = 8 * w.Relays
	e.Memory = 16 << 20
	e.Advice = w.advice(e)
	return e
}

// wal is what a message writes to the log, in a transaction of several messages.
func (w Workload) wal(row float64) float64 {
	const heap, index = 60, 74 // headers of a row's record; a record of an index
	bytes := row + heap + 2*index
	if _, aside := w.outboxRow(); aside > 0 {
		chunks := (w.Bytes + chunk - 1) / chunk
		bytes += float64(w.Bytes + chunks*(rowHeader+13+heap+index))
	}
	return bytes
}

func (w Workload) advice(e Estimate) (lines []string) {
	if e.Outbox > 20<<30 {
		lines = append(lines, "partitions: settled rows are removed by dropping tables, which leaves nothing to vacuum: postrider migrate --partition")
	}
	if w.Lanes < 4*w.Relays {
		lines = append(lines, fmt.Sprintf("lanes: take at least four times the relays: postrider migrate --lanes %d", 4*w.Relays))
	}
	if w.Bytes > 256<<10 {
		lines = append(lines, "payloads above 256 KiB: leave them in the database and send a reference: --claim")
	}
	if w.Rate > 5000 {
		lines = append(lines, "rate: measure your own database and broker first: go run ./bench run W1")
	}
	return lines
}
