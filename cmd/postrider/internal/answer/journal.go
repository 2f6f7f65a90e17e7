package answer

import (
	"encoding/json"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Entry is one entry of the journal in JSON. Numbers that may exceed what a
// JavaScript number holds are strings.
type Entry struct {
	ID     string          `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Act    string          `json:"act"`
	Pipe   string          `json:"pipe,omitempty"`
	Lane   *store.Lane     `json:"lane,omitempty"`
	Seq    string          `json:"seq,omitempty"`
	Key    string          `json:"key,omitempty"`
	Target json.RawMessage `json:"target,omitempty"`
	Reason string          `json:"reason"`
	Result string          `json:"result"`
	Count  *int64          `json:"count,omitempty"`
	Ask    string          `json:"ask,omitempty"`
}

// Act is an entry of a consumer's journal in JSON.
type Act struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Act     string    `json:"act"`
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	Message string    `json:"message_id,omitempty"`
	Was     int64     `json:"was"`
	Now     int64     `json:"now"`
	Reason  string    `json:"reason"`
}

// EntriesOf is the answer about a page of entries.
func EntriesOf(entries []ops.JournalEntry) []Entry {
	answers := make([]Entry, 0, len(entries))
	for _, e := range entries {
		answers = append(answers, entryOf(e))
	}
	return answers
}

func entryOf(e ops.JournalEntry) Entry {
	answer := Entry{
		ID: strconv.FormatInt(e.ID, 10), At: e.At, Actor: e.Actor, Act: e.Act, Pipe: e.Pipe, Lane: e.Lane, Key: e.Key,
		Target: e.Target, Reason: e.Reason, Result: e.Result, Count: e.Count,
	}
	if e.Seq != 0 {
		answer.Seq = strconv.FormatInt(e.Seq, 10)
	}
	if e.Ask != 0 {
		answer.Ask = strconv.FormatInt(e.Ask, 10)
	}
	return answer
}

// EntriesText lists a page of at most limit entries.
func EntriesText(w *tabwriter.Writer, answers []Entry, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "ID", "AT", "WHO", "ACT", "PIPE", "LANE", "SEQ", "KEY", "RESULT", "COUNT", "ASKED BY", "WHY", "TARGET")
	for _, e := range answers {
		lane, count := "", ""
		if e.Lane != nil {
			lane = strconv.Itoa(int(*e.Lane))
		}
		if e.Count != nil {
			count = strconv.FormatInt(*e.Count, 10)
		}
		output.Row(w, e.ID, output.Stamp(e.At), e.Actor, e.Act, e.Pipe, lane, e.Seq, e.Key, e.Result, count,
			e.Ask, e.Reason, string(e.Target))
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --before "+answers[len(answers)-1].ID)
	}
}

// ActsOf is the answer about a page of a consumer's journal.
func ActsOf(acts []inbox.Act) []Act {
	answers := make([]Act, 0, len(acts))
	for _, e := range acts {
		answers = append(answers, Act{strconv.FormatInt(e.ID, 10), e.At, e.Actor, e.Act, e.Topic, e.Key, e.MessageID, e.Was, e.Now, e.Reason})
	}
	return answers
}

// ActsText lists a page of at most limit acts.
func ActsText(w *tabwriter.Writer, answers []Act, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "ID", "AT", "WHO", "ACT", "TOPIC", "KEY", "MESSAGE", "WAS", "NOW", "WHY")
	for _, e := range answers {
		output.Row(w, e.ID, output.Stamp(e.At), e.Actor, e.Act, e.Topic, e.Key, e.Message, e.Was, e.Now, e.Reason)
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --before "+answers[len(answers)-1].ID)
	}
}
