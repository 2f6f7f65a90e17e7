package inbox

import (
	"context"
	"fmt"
	"time"
)

// Status is what the tables know of one consumer: of all its processes, also
// when none lives. All times are by the database's clock.
type Status struct {
	Consumer string
	At       time.Time // when it was asked
	// LastClaim is when a message was last processed, and FirstClaim when the
	// oldest that is not forgotten was. Zero: never.
	LastClaim, FirstClaim time.Time
	Dead                  int64         // dead letters
	DeadAge               time.Duration // of the oldest
	Retrying              int64         // failed, and to be tried again
	// Overdue are those whose next try was due at least a minute ago, or which a
	// process has begun ten minutes ago and not ended: a consumer that runs leaves
	// none but those that its broker does not deliver again. OverdueAge is for how
	// long the oldest has been due.
	Overdue    int64
	OverdueAge time.Duration
	Stashed    int64 // kept until those before them have come
	// Gaps are the keys whose stashed messages wait for versions that have not
	// come, and GapAge is for how long the oldest has waited. Blocked are those of
	// them with a dead letter, which a person is to look at.
	Gaps, Blocked int64
	GapAge        time.Duration
	// Due are stashed messages whose turn has come and which no process has applied,
	// DueAge is since when at the most.
	Due    int64
	DueAge time.Duration
	// Capped marks the figures as lower bounds: no more than [StatusLimit]
	// failed and as many stashed messages are looked at.
	Capped bool
}

// StatusLimit bounds the rows that [Inbox.Status] reads of each table.
const StatusLimit = 100_000

// Status counts what there is of the consumer.
func (in *Inbox) Status(ctx context.Context, db Conn) (Status, error) {
	if in.who.Err != nil {
		return Status{}, in.who.Err
	}
	s := Status{Consumer: in.who.Consumer}
	var now, first, last, failed, looked, deadAge, overdueAge, gapAge, dueAge int64
	err := db.QueryRow(ctx, in.sql.status, in.who.Consumer, StatusLimit).Scan(
		&now, &first, &last, &failed, &s.Dead, &deadAge, &s.Overdue, &overdueAge,
		&looked, &s.Gaps, &s.Blocked, &gapAge, &s.Due, &dueAge)
	if err != nil {
		return Status{}, Classify(fmt.Errorf("inbox %q: ask for the status: %w", in.who.Consumer, err))
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
	// One row. Claims are looked at by their ends only, which an index has.
	statusSQL = `WITH failed AS (
SELECT a.state, {us}{now} - a.updated_at{usend} AS age,
CASE WHEN a.begun_by IS NULL THEN {us}{now} - a.next_at{usend} - 60000000 ELSE {us}{now} - a.updated_at{usend} - 600000000 END AS late
FROM {attempt} AS a WHERE a.consumer = $1 LIMIT $2
), waits AS (
SELECT s.topic, s.key, s.needs, s.message_id, {us}{now} - s.stashed_at{usend} AS age
FROM {stash} AS s WHERE s.consumer = $1 LIMIT $2
), keys AS (
SELECT w.topic, w.key, min(w.needs) AS needs, max(w.age) AS age, coalesce(max(m.version), 0) AS mark
FROM waits AS w LEFT JOIN {mark} AS m ON m.consumer = $1 AND m.topic = w.topic AND m.key = w.key GROUP BY w.topic, w.key
), gaps AS (
SELECT k.age, CASE WHEN EXISTS (SELECT 1 FROM {attempt} AS a
WHERE a.consumer = $1 AND a.state = 'dead' AND a.topic = k.topic AND a.key = k.key) THEN 1 ELSE 0 END AS blocked
FROM keys AS k WHERE k.needs > k.mark
), due AS (
SELECT w.age FROM waits AS w JOIN keys AS k ON k.topic = w.topic AND k.key = w.key AND w.needs <= k.mark
WHERE NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = w.message_id)
)
SELECT {us}{now}{usend},
coalesce((SELECT {us}min(i.processed_at){usend} FROM {inbox} AS i WHERE i.consumer = $1), 0),
coalesce((SELECT {us}max(i.processed_at){usend} FROM {inbox} AS i WHERE i.consumer = $1), 0),
f.n, f.dead, f.age, f.overdue, f.late, g.looked, g.gaps, g.blocked, g.age, d.n, d.age
FROM (SELECT count(*) AS n, coalesce(sum(CASE WHEN state = 'dead' THEN 1 ELSE 0 END), 0) AS dead,
coalesce(max(CASE WHEN state = 'dead' THEN age END), 0) AS age,
coalesce(sum(CASE WHEN state = 'retry' AND late > 0 THEN 1 ELSE 0 END), 0) AS overdue,
coalesce(max(CASE WHEN state = 'retry' AND late > 0 THEN late END), 0) AS late FROM failed) AS f,
(SELECT (SELECT count(*) FROM waits) AS looked, count(*) AS gaps, coalesce(sum(blocked), 0) AS blocked, coalesce(max(age), 0) AS age FROM gaps) AS g,
(SELECT count(*) AS n, coalesce(max(age), 0) AS age FROM due) AS d`
)
