package storetest

import (
	"database/sql"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// ScanView reads rows of a view of messages that were selected with ops.ViewColumns from a
// database that keeps times as numbers, and closes them.
func ScanView(rows *sql.Rows, moment func(sql.NullInt64) time.Time) ([]ops.ViewRow, error) {
	defer rows.Close()
	var all []ops.ViewRow
	for rows.Next() {
		var r ops.ViewRow
		var headers []byte
		var parked, waits, class, code, text, owner sql.NullString
		var attempts, generation sql.NullInt64
		var at [7]sql.NullInt64
		err := rows.Scan(&r.Pipe, &r.Lane, &r.Seq, &r.ID, &r.Topic, &r.Key, &r.Type, &r.Version, &r.State, &parked, &waits, &at[0], &at[1], &at[2],
			&attempts, &at[3], &at[4], &at[5], &class, &code, &text, &owner, &at[6], &generation, &r.ContentType, &r.SchemaVersion, &headers, &r.PayloadBytes)
		if err == nil {
			err = json.Unmarshal(headers, &r.Headers)
		}
		if err != nil {
			return nil, err
		}
		r.Parked, r.WaitsFor, r.ErrorClass, r.ErrorCode, r.Error, r.LockOwner = parked.String, waits.String, class.String, code.String, text.String, owner.String
		if r.Attempts = int(attempts.Int64); !attempts.Valid {
			r.Attempts = -1
		}
		r.Generation = int(generation.Int64)
		for i, to := range []*time.Time{&r.CreatedAt, &r.NotBefore, &r.SentAt, &r.FirstFailed, &r.LastAttempt, &r.NextAttempt, &r.LockedUntil} {
			*to = moment(at[i])
		}
		all = append(all, r)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

// LagBound proves that the lag is an upper bound, and is marked as one, where none of the
// messages that are counted is due. admin counts ten rows of the one lane of an empty outbox.
// insert makes a message of a time, notBefore a time later where it is not zero; removeFirst
// removes the first.
func LagBound(t *testing.T, admin ops.Admin, insert func(at, notBefore time.Time), removeFirst func()) {
	t.Helper()
	want := func(what string, capped bool, least, most time.Duration) {
		t.Helper()
		got, err := admin.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l := got.Lanes[0]; got.LagCapped != capped || l.LagCapped != capped || got.Lag != l.Lag || l.Lag < least || l.Lag > most {
			t.Errorf("%s: lag %v, capped %v; lane %+v", what, got.Lag, got.LagCapped, l)
		}
	}
	now := time.Now()
	for range 10 {
		insert(now.Add(-3*time.Hour), now.Add(24*time.Hour))
	}
	want("ten scheduled messages", false, 0, 0)
	insert(now.Add(-2*time.Hour), time.Time{})
	want("one behind them", true, 2*time.Hour, 150*time.Minute)
	removeFirst()
	want("nine scheduled ones and another", false, 2*time.Hour, 150*time.Minute)
}
