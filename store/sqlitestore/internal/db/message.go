package db

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// MessageColumns are the columns of a message in either table.
const MessageColumns = "id, topic, key, type, CAST(payload AS BLOB), content_type, headers, version, schema_version, not_before, created_at"

// ScanMessage scans a row whose message columns stand between others.
func ScanMessage(rows *sql.Rows, before, behind []any) (postrider.Message, error) {
	var m postrider.Message
	var headers string
	var notBefore, created sql.NullInt64
	dest := append(append(before, &m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &headers,
		&m.Version, &m.SchemaVersion, &notBefore, &created), behind...)
	if err := rows.Scan(dest...); err != nil {
		return m, err
	}
	// The table's own functions end a text at a zero byte, and what stands behind it they let pass.
	headers, _, _ = strings.Cut(headers, "\x00")
	if headers != "{}" {
		if err := json.Unmarshal([]byte(headers), &m.Headers); err != nil {
			return m, fmt.Errorf("headers of message %s: %w", m.ID, err)
		}
	}
	m.NotBefore, m.Time = Moment(notBefore), Moment(created)
	return m, nil
}

// StateOf is the state of that name.
func StateOf(name string) store.State {
	for state := store.Scheduled; state <= store.Dead; state++ {
		if state.String() == name {
			return state
		}
	}
	return store.Pending
}

// Attempt is one entry of the column history of a parked record.
type Attempt struct {
	At      int64  `json:"at"` // microseconds of Unix time
	Attempt int    `json:"attempt"`
	Class   string `json:"class"`
	Code    string `json:"code"`
	Error   string `json:"error"`
}

// AttemptsOf reads the column history.
func AttemptsOf(history string) ([]ops.Attempt, error) {
	if history == "[]" {
		return nil, nil
	}
	var kept []Attempt
	if err := json.Unmarshal([]byte(history), &kept); err != nil {
		return nil, fmt.Errorf("attempts of a parked record: %w", err)
	}
	all := make([]ops.Attempt, len(kept))
	for i, a := range kept {
		all[i] = ops.Attempt{At: time.UnixMicro(a.At).UTC(), Attempt: a.Attempt, Class: a.Class, Code: a.Code, Error: a.Error}
	}
	return all, nil
}
