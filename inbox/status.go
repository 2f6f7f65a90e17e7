package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postrider/postrider/dialect"
)

// Status is what the tables know of one consumer: of all its processes, also
// when none lives. All times are by the database's clock.
type Status struct {
	Consumer string
	At       time.Time // when it was asked
	// LastClaim is when a message was last processed, and FirstClaim when the
	// oldest that is not forgotten was. Zero: there is none.
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
	// Due are stashed messages whose turn has come and which nobody has applied,
	// DueAge is since when at the most.
	Due    int64
	DueAge time.Duration
	// Capped says that the figures are lower bounds: no more than [StatusLimit]
	// failed and as many stashed messages are looked at.
	Capped bool
}

// StatusLimit bounds the rows that [Inbox.Status] reads of each table.
const StatusLimit = 100_000

// Status counts what there is of the consumer.
func (in *Inbox) Status(ctx context.Context, db Conn) (Status, error) {
	if in.err != nil {
		return Status{}, in.err
	}
	s := Status{Consumer: in.consumer}
	var now, first, last, failed, looked, deadAge, overdueAge, gapAge, dueAge int64
	err := db.QueryRow(ctx, in.sql.status, in.consumer, StatusLimit).Scan(
		&now, &first, &last, &failed, &s.Dead, &deadAge, &s.Overdue, &overdueAge,
		&looked, &s.Gaps, &s.Blocked, &gapAge, &s.Due, &dueAge)
	if err != nil {
		return Status{}, Classify(fmt.Errorf("inbox %q: ask for the status: %w", in.consumer, err))
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

// Consumers names every consumer that the inbox tables of a schema, which is that
// of [Options], know, in the order of the names.
func Consumers(ctx context.Context, db Conn, d dialect.Dialect, schema string) ([]string, error) {
	s := newStatements(d, schema)
	var list string
	if err := db.QueryRow(ctx, s.consumers).Scan(&list); err != nil {
		return nil, Classify(fmt.Errorf("inbox: list the consumers: %w", err))
	}
	var names []string
	if err := json.Unmarshal([]byte(list), &names); err != nil {
		return nil, fmt.Errorf("inbox: list the consumers: %w", err)
	}
	return names, nil
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

	// Each step is one look into an index, whatever the size of the table.
	consumersSQL = `WITH RECURSIVE i(c) AS (SELECT min(consumer) FROM {inbox}
UNION ALL SELECT (SELECT min(t.consumer) FROM {inbox} AS t WHERE t.consumer > i.c) FROM i WHERE i.c IS NOT NULL),
a(c) AS (SELECT min(consumer) FROM {attempt}
UNION ALL SELECT (SELECT min(t.consumer) FROM {attempt} AS t WHERE t.consumer > a.c) FROM a WHERE a.c IS NOT NULL),
m(c) AS (SELECT min(consumer) FROM {mark}
UNION ALL SELECT (SELECT min(t.consumer) FROM {mark} AS t WHERE t.consumer > m.c) FROM m WHERE m.c IS NOT NULL),
s(c) AS (SELECT min(consumer) FROM {stash}
UNION ALL SELECT (SELECT min(t.consumer) FROM {stash} AS t WHERE t.consumer > s.c) FROM s WHERE s.c IS NOT NULL)
SELECT {names} FROM (SELECT c FROM i UNION SELECT c FROM a UNION SELECT c FROM m UNION SELECT c FROM s ORDER BY 1) AS u WHERE c IS NOT NULL`
)

// Table is one of the inbox tables.
type Table struct {
	Name  string `json:"name"`  // with the schema
	Bytes int64  `json:"bytes"` // with indexes and all; 0 where the database does not say
}

// Tables returns the inbox tables of a schema, which is that of [Options]: those
// that are there, and the names of those that are missing.
func Tables(ctx context.Context, db Conn, d dialect.Dialect, schema string) (there []Table, missing []string, err error) {
	sizes, err := relations(ctx, db, d, schema)
	if err != nil {
		return nil, nil, err
	}
	n := flavourOf(d).names(schema)
	for _, name := range []string{n.inbox, n.attempt, n.mark, n.stash, n.journal} {
		if size, ok := sizes[bare(name)]; ok {
			there = append(there, Table{Name: name, Bytes: size})
		} else {
			missing = append(missing, name)
		}
	}
	return there, missing, nil
}

// relations are the tables of a schema by their bare names, with their sizes.
func relations(ctx context.Context, db Conn, d dialect.Dialect, schema string) (sizes map[string]int64, err error) {
	var list string
	if err := db.QueryRow(ctx, flavourOf(d).names(schema).tables).Scan(&list); err != nil {
		return nil, Classify(fmt.Errorf("inbox: look for the tables: %w", err))
	}
	if err := json.Unmarshal([]byte(list), &sizes); err != nil {
		return nil, fmt.Errorf("inbox: look for the tables: %w", err)
	}
	return sizes, nil
}
