package db

import (
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// ScanMessage reads the message columns of the admin's lists.
func ScanMessage(rows pgx.Rows, m *postrider.Message, more ...any) error {
	var notBefore Time
	dest := []any{&m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &m.Headers, &m.Version, &m.SchemaVersion, &notBefore, &m.Time}
	if err := rows.Scan(append(dest, more...)...); err != nil {
		return err
	}
	if notBefore != nil {
		m.NotBefore = notBefore.UTC()
	}
	m.Time = m.Time.UTC()
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	return nil
}

// stateOf is the inverse of State.String for the states in the table parked.
// StateOf returns the state in a column.
func StateOf(text string) store.State {
	for _, st := range []store.State{store.Scheduled, store.Retry, store.Waiting, store.Dead} {
		if st.String() == text {
			return st
		}
	}
	return store.Pending
}
