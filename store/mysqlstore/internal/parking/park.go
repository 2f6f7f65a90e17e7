// Package parking makes the statements that set records aside.
package parking

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/packets"
)

// atOnce is how many records one statement sets aside at most.
const atOnce = 100

// columns are the values of a record, x.
const columns = "seq, state, captures, due, ahead, failed, attempts, class, code, error, id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at"

// Park puts records of a lane into the parked table or changes them there, on condition that a call of
// Settle has moved the lane. Their generations and the times of their first failures stay.
func Park(pipe string, lane store.Lane, call int64, records []store.Park) (all []db.Statement, err error) {
	first := "SELECT ? AS " + strings.ReplaceAll(columns, ", ", ", ? AS ")
	next := " UNION ALL SELECT ?" + strings.Repeat(",?", strings.Count(columns, ","))
	var parts []string
	var args []any
	size := 0
	end := func() {
		all = append(all, db.Statement{Query: before + strings.Join(parts, "") + behind, Args: append(args, pipe, lane, call)})
		parts, args, size = nil, nil, 0
	}
	for i := range records {
		values, err := valuesOf(&records[i])
		if err != nil {
			return nil, fmt.Errorf("park record %d: %w", records[i].Seq, err)
		}
		more := packets.Bytes(values) + len(next)
		if len(parts) == atOnce || len(parts) > 0 && size+more > packets.Part {
			end()
		}
		part := next
		if len(parts) == 0 { // it names the columns
			part = first
		}
		parts, args, size = append(parts, part), append(args, values...), size+more
	}
	if len(parts) > 0 {
		end()
	}
	return all, nil
}

// valuesOf returns the values of a record in the order of columns.
func valuesOf(p *store.Park) ([]any, error) {
	m := &p.Message
	headers := "{}"
	if len(m.Headers) > 0 {
		text, err := json.Marshal(m.Headers)
		if err != nil {
			return nil, err
		}
		headers = string(text)
	}
	payload, notBefore := m.Payload, any(nil)
	if payload == nil {
		payload = []byte{}
	}
	if !m.NotBefore.IsZero() {
		notBefore = m.NotBefore.UnixMicro()
	}
	failed := p.State == store.Dead || p.State == store.Retry
	// A record is due at its time, or some time ahead of now.
	due, ahead := any(int64(0)), true
	switch {
	case p.State == store.Scheduled && notBefore != nil:
		due, ahead = notBefore, false
	case p.State == store.Retry || p.State == store.Scheduled:
		due = p.DueIn.Microseconds()
	}
	return []any{
		p.Seq, p.State.String(), p.Captures && m.Key != "" && failed, due, ahead, failed, p.Attempts, p.Class, p.Code, p.Error,
		[]byte(m.ID), m.Topic, []byte(m.Key), m.Type, payload, m.ContentType, headers, m.Version, m.SchemaVersion, notBefore, m.Time.UnixMicro(),
	}, nil
}

const (
	failedAt = `CASE WHEN x.failed THEN ` + db.Now + ` END`
	before   = "INSERT INTO postrider_parked (pipe, lane, due_at, first_failed, last_attempt, history," +
		" seq, state, captures, attempts, class, code, error, id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at)" +
		` SELECT p.pipe, p.lane, x.due + CASE WHEN x.ahead THEN ` + db.Now + ` ELSE 0 END, ` + failedAt + `, ` + failedAt + `,
		CASE WHEN x.failed AND x.class <> '' THEN JSON_ARRAY(JSON_OBJECT('at', ` + db.Now + `, 'attempt', x.attempts, 'class', x.class, 'code', x.code, 'error', x.error)) ELSE '[]' END,` +
		" x.seq, x.state, x.captures, x.attempts, x.class, x.code, x.error, x.id, x.topic, x.`key`, x.type, x.payload, x.content_type, x.headers, x.version, x.schema_version, x.not_before, x.created_at" +
		` FROM (`
	behind = `) AS x JOIN postrider_progress p ON p.pipe = ? AND p.lane = ? AND p.settled_call = ?
		ON DUPLICATE KEY UPDATE state = VALUES(state), captures = VALUES(captures), due_at = VALUES(due_at), attempts = VALUES(attempts),
		history = CASE WHEN VALUES(history) = '[]' THEN history ELSE JSON_ARRAY_APPEND(
			CASE WHEN JSON_LENGTH(history) < 8 THEN history ELSE JSON_REMOVE(history, '$[0]') END, '$', JSON_EXTRACT(VALUES(history), '$[0]')) END,
		class = VALUES(class), code = VALUES(code), error = VALUES(error),
		first_failed = COALESCE(first_failed, VALUES(first_failed)), last_attempt = COALESCE(VALUES(last_attempt), last_attempt)`
)
