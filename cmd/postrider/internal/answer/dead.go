package answer

import (
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store/ops"
)

// Record is one parked record in JSON. Seq is a string: it may exceed
// what a JavaScript number holds.
type Record struct {
	Seq         string    `json:"seq"`
	Lane        int       `json:"lane"`
	State       string    `json:"state"`
	BlocksKey   bool      `json:"blocks_key"`
	ID          string    `json:"id"`
	Topic       string    `json:"topic"`
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	Attempts    int       `json:"attempts"`
	Generation  int       `json:"generation"`
	Class       string    `json:"class"`
	Code        string    `json:"code"`
	Error       string    `json:"error"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	LastAttempt time.Time `json:"last_attempt,omitzero"`
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	// History is the last attempts, of one record that is shown.
	History []ops.Attempt `json:"history,omitempty"`
	Body
}

// Body is a message's body; only its size where it is not asked for.
type Body struct {
	PayloadBytes  *int              `json:"payload_bytes,omitempty"` // where the payload was asked for
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
}

// RecordOf is the answer about r as of now, with its payload and headers where they are
// asked for.
func RecordOf(r ops.ParkedRecord, payload bool, now time.Time) Record {
	m := r.Message
	return Record{
		Seq: strconv.FormatInt(r.Seq, 10), Lane: int(r.Lane), State: r.State.String(), BlocksKey: r.Captures && m.Key != "",
		ID: m.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Attempts: r.Attempts, Generation: r.Generation,
		Class: r.Class, Code: r.Code, Error: r.Error, FirstFailed: r.FirstFailed, LastAttempt: r.LastAttempt,
		NextAttempt: next(&r, now), History: r.History, Body: bodyOf(&m, payload),
	}
}

func bodyOf(m *postrider.Message, payload bool) Body {
	if !payload { // a reader may not see it
		return Body{}
	}
	size := len(m.Payload)
	answer := Body{PayloadBytes: &size}
	answer.ContentType, answer.Headers = m.ContentType, m.Headers
	if utf8.Valid(m.Payload) {
		text := string(m.Payload)
		answer.Payload = &text
	} else {
		text := base64.StdEncoding.EncodeToString(m.Payload)
		answer.PayloadBase64 = &text
	}
	return answer
}

// RecordsOf is the answer about a page of records, without their bodies.
func RecordsOf(records []ops.ParkedRecord, now time.Time) []Record {
	answers := make([]Record, 0, len(records))
	for _, r := range records {
		one := RecordOf(r, false, now)
		one.History = nil
		answers = append(answers, one)
	}
	return answers
}

// RecordsText lists a page of at most limit records.
func RecordsText(w *tabwriter.Writer, answers []Record, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "SEQ", "STATE", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "LAST ATTEMPT", "NEXT ATTEMPT", "CLASS", "CODE", "ERROR")
	for _, r := range answers {
		output.Row(w, r.Seq, r.State, r.Topic, r.Key, r.Type, r.Attempts, output.Stamp(r.LastAttempt), output.Stamp(r.NextAttempt),
			r.Class, r.Code, r.Error)
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --after "+answers[len(answers)-1].Seq)
	}
}

// Text writes one record for a person.
func (r Record) Text(w *tabwriter.Writer) {
	for _, c := range [][2]string{
		{"seq", r.Seq},
		{"state", r.State},
		{"lane", strconv.Itoa(r.Lane)},
		{"blocks its key", strconv.FormatBool(r.BlocksKey)},
		{"id", r.ID},
		{"topic", r.Topic},
		{"key", r.Key},
		{"type", r.Type},
		{"attempts", strconv.Itoa(r.Attempts)},
		{"generation", strconv.Itoa(r.Generation)},
		{"class", r.Class},
		{"code", r.Code},
		{"error", r.Error},
		{"first failed", output.Stamp(r.FirstFailed)},
		{"last attempt", output.Stamp(r.LastAttempt)},
		{"next attempt", output.Stamp(r.NextAttempt)},
	} {
		output.Row(w, c[0], c[1])
	}
	r.text(w)
	historyText(w, r.History)
}

func (b *Body) text(w *tabwriter.Writer) {
	if b.PayloadBytes != nil {
		output.Row(w, "payload bytes", *b.PayloadBytes)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		output.Row(w, "header "+name, b.Headers[name])
	}
	switch {
	case b.Payload != nil:
		output.Row(w, "payload", *b.Payload)
	case b.PayloadBase64 != nil:
		output.Row(w, "payload (base64)", *b.PayloadBase64)
	}
}

// Letter is a consumer's dead letter in JSON.
type Letter struct {
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Key      string    `json:"key"`
	Type     string    `json:"type"`
	Version  int64     `json:"version,omitempty"`
	Origin   string    `json:"origin"` // where it stood at the broker
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	Died     time.Time `json:"died"`
	Body
}

// LetterOf is the answer about l, with its payload and headers where they are asked for.
func LetterOf(l *inbox.DeadLetter, payload bool) Letter {
	m := &l.Message
	return Letter{
		ID: m.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Version: m.Version, Origin: l.Origin,
		Attempts: l.Attempts, Error: l.Cause, Died: l.DiedAt, Body: bodyOf(m, payload),
	}
}

// LettersOf is the answer about a page of dead letters, without their bodies.
func LettersOf(letters []inbox.DeadLetter) []Letter {
	answers := make([]Letter, 0, len(letters))
	for i := range letters {
		answers = append(answers, LetterOf(&letters[i], false))
	}
	return answers
}

// LettersText lists a page of at most limit dead letters.
func LettersText(w *tabwriter.Writer, answers []Letter, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "ID", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "DIED", "ERROR")
	for _, r := range answers {
		output.Row(w, r.ID, r.Topic, r.Key, r.Type, r.Attempts, output.Stamp(r.Died), r.Error)
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --after "+answers[len(answers)-1].ID)
	}
}

// Text writes one dead letter for a person.
func (l *Letter) Text(w *tabwriter.Writer) {
	for _, c := range [][2]string{
		{"id", l.ID},
		{"topic", l.Topic},
		{"key", l.Key},
		{"type", l.Type},
		{"version", strconv.FormatInt(l.Version, 10)},
		{"origin", l.Origin},
		{"attempts", strconv.Itoa(l.Attempts)},
		{"error", l.Error},
		{"died", output.Stamp(l.Died)},
	} {
		output.Row(w, c[0], c[1])
	}
	l.text(w)
}
