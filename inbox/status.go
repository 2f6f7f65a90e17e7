package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
)

// Status is the state of one consumer in its tables: of all its processes, even
// if none is running. All times are by the database's clock.
type Status struct {
	Consumer string
	At       time.Time // time of the query
	// LastClaim is when a message was last processed, and FirstClaim when the
	// oldest remembered message was. Zero: never.
	LastClaim, FirstClaim time.Time
	Dead                  int64         // dead letters
	DeadAge               time.Duration // of the oldest
	Retrying              int64         // failed messages that will be tried again
	MostAttempts          int64         // of the message among these that was tried most often
	// Overdue counts messages whose next try was due at least a minute ago, or which a
	// process began ten minutes ago and has not ended. A running consumer has
	// only overdue messages that its broker does not deliver again. OverdueAge is how
	// long the oldest has been due.
	Overdue    int64
	OverdueAge time.Duration
	Stashed    int64 // messages stashed until earlier versions have arrived
	// Gaps counts keys whose stashed messages wait for missing versions,
	// and GapAge is how long the oldest has waited. Blocked counts the keys among
	// them with a dead letter, which a person must handle.
	Gaps, Blocked int64
	GapAge        time.Duration
	// Due counts stashed messages whose turn has come and which no process has applied;
	// DueAge is how long they have been due at most.
	Due    int64
	DueAge time.Duration
	// Capped marks the figures as lower bounds: at most [StatusLimit]
	// failed and as many stashed messages are counted.
	Capped bool
}

// StatusLimit bounds the rows that [Inbox.Status] reads of each table.
const StatusLimit = 100_000

// Status returns the state of the consumer.
func (in *Inbox) Status(ctx context.Context, db Conn) (Status, error) {
	if in.who.Err != nil {
		return Status{}, in.who.Err
	}
	s := Status{Consumer: in.who.Consumer}
	var now, first, last, failed, looked, deadAge, overdueAge, gapAge, dueAge int64
	err := inboxsql.QueryRow(ctx, db, in.sql.status, in.who.Consumer, StatusLimit).Scan(
		&now, &first, &last, &failed, &s.Dead, &deadAge, &s.Overdue, &overdueAge, &s.MostAttempts,
		&looked, &s.Gaps, &s.Blocked, &gapAge, &s.Due, &dueAge)
	if err != nil {
		return Status{}, Classify(fmt.Errorf("inbox %q: read the status: %w", in.who.Consumer, err))
	}
	s.At, s.FirstClaim, s.LastClaim = micros(now), micros(first), micros(last)
	s.Retrying, s.Stashed, s.Capped = failed-s.Dead, looked, failed >= StatusLimit || looked >= StatusLimit
	for _, d := range []struct {
		to *time.Duration
		us int64
	}{{&s.DeadAge, deadAge}, {&s.OverdueAge, overdueAge}, {&s.GapAge, gapAge}, {&s.DueAge, dueAge}} {
		*d.to = max(0, time.Duration(d.us)*time.Microsecond)
	}
	return s, nil
}

func micros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

const (
	// One row. Of the claims only the first and the last are read, by an index.
	statusSQL = `WITH failed AS (
SELECT a.state, a.attempts, {us}{now} - a.updated_at{usend} AS age,
CASE WHEN a.begun_by IS NULL THEN {us}{now} - a.next_at{usend} - 60000000 ELSE {us}{now} - a.updated_at{usend} - 600000000 END AS late
FROM {attempt} AS a WHERE a.consumer = $1 LIMIT $2
), waits AS (
SELECT s.topic, s.key, s.needs, s.message_id, {us}{now} - s.stashed_at{usend} AS age
FROM {stash} AS s WHERE s.consumer = $1 LIMIT $2
), by_key AS (
SELECT w.topic, w.key, min(w.needs) AS needs, max(w.age) AS age, coalesce(max(m.version), 0) AS mark
FROM waits AS w LEFT JOIN {mark} AS m ON m.consumer = $1 AND m.topic = w.topic AND m.key = w.key GROUP BY w.topic, w.key
), gaps AS (
SELECT k.age, CASE WHEN EXISTS (SELECT 1 FROM {attempt} AS a
WHERE a.consumer = $1 AND a.state = 'dead' AND a.topic = k.topic AND a.key = k.key) THEN 1 ELSE 0 END AS blocked
FROM by_key AS k WHERE k.needs > k.mark
), due AS (
SELECT w.age FROM waits AS w JOIN by_key AS k ON k.topic = w.topic AND k.key = w.key AND w.needs <= k.mark
WHERE NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = w.message_id)
)
SELECT {us}{now}{usend},
coalesce((SELECT {us}min(i.processed_at){usend} FROM {inbox} AS i WHERE i.consumer = $1), 0),
coalesce((SELECT {us}max(i.processed_at){usend} FROM {inbox} AS i WHERE i.consumer = $1), 0),
f.n, f.dead, f.age, f.overdue, f.late, f.attempts, g.looked, g.gaps, g.blocked, g.age, d.n, d.age
FROM (SELECT count(*) AS n, coalesce(sum(CASE WHEN state = 'dead' THEN 1 ELSE 0 END), 0) AS dead,
coalesce(max(CASE WHEN state = 'dead' THEN age END), 0) AS age,
coalesce(sum(CASE WHEN state = 'retry' AND late > 0 THEN 1 ELSE 0 END), 0) AS overdue,
coalesce(max(CASE WHEN state = 'retry' AND late > 0 THEN late END), 0) AS late,
coalesce(max(CASE WHEN state = 'retry' THEN attempts END), 0) AS attempts FROM failed) AS f,
(SELECT (SELECT count(*) FROM waits) AS looked, count(*) AS gaps, coalesce(sum(blocked), 0) AS blocked, coalesce(max(age), 0) AS age FROM gaps) AS g,
(SELECT count(*) AS n, coalesce(max(age), 0) AS age FROM due) AS d`
)
