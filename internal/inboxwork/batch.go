package inboxwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// MarkBatch records which messages owner (see [Try]) is about to handle in one transaction,
// in the place of those that it has recorded for the same slot. Commit it before their
// handlers run: if they take the process down, others find them among their [Suspects].
// On PostgreSQL the commit does not wait for the disk: it has to outlive the process only.
func (in *Inbox) MarkBatch(ctx context.Context, tx inbox.Conn, owner string, slot int, msgs []postrider.Message) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	var ids strings.Builder
	for i := range msgs {
		fmt.Fprintf(&ids, "%0*x", digits, short(msgs[i].ID))
	}
	_, err := in.sql.markBatch.Exec(ctx, tx, in.who.Consumer, owner, slot, ids.String())
	return in.marking("record a batch", err)
}

// ForgetBatches removes what owner has recorded with MarkBatch, and what anybody has
// recorded and not replaced for as long as horizon.
func (in *Inbox) ForgetBatches(ctx context.Context, tx inbox.Conn, owner string, horizon time.Duration) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	_, own := in.sql.forgetBatches.Exec(ctx, tx, in.who.Consumer, owner)
	if own != nil {
		return in.marking("forget batches", own)
	}
	_, old := in.sql.forgetOldBatches.Exec(ctx, tx, in.who.Consumer, -horizon.Microseconds())
	return in.marking("forget batches", old)
}

// Suspects are messages that other owners were handling in batches when they were last
// heard of: some of these owners live, and some were ended by one of the messages. They are
// known by a digest of their ids: another message may be among them, rarely.
type Suspects struct{ digests map[uint64]bool }

// Has reports whether the message of an id is one of them. The zero Suspects has none.
func (s Suspects) Has(id string) bool { return s.digests[short(id)] }

// maxBatches bounds the batches that Suspects reads, the latest first.
const maxBatches = 256

// Suspects reads the batches of all owners but this one.
func (in *Inbox) Suspects(ctx context.Context, db inbox.Conn, owner string) (Suspects, error) {
	if in.who.Err != nil {
		return Suspects{}, in.who.Err
	}
	var list string
	if err := inboxsql.QueryRow(ctx, db, in.sql.batches, in.who.Consumer, owner, maxBatches).Scan(&list); err != nil {
		return Suspects{}, in.marking("read batches", err)
	}
	var batches []string
	if err := json.Unmarshal([]byte(list), &batches); err != nil {
		return Suspects{}, in.marking("read batches", err)
	}
	s := Suspects{digests: make(map[uint64]bool)}
	for _, ids := range batches {
		for ; len(ids) >= digits; ids = ids[digits:] {
			var digest uint64
			if _, err := fmt.Sscanf(ids[:digits], "%x", &digest); err != nil {
				return Suspects{}, in.marking("read batches", errors.Join(errBatch, err))
			}
			s.digests[digest] = true
		}
	}
	return s, nil
}

var errBatch = errors.New("a row holds something else than digests")

func (in *Inbox) marking(what string, err error) error {
	if err == nil {
		return nil
	}
	return inbox.Classify(fmt.Errorf("inbox %q: %s: %w", in.who.Consumer, what, err))
}

// digits are those of a digest, in base 16.
const digits = 12

func short(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return h.Sum64() >> (64 - 4*digits)
}

const (
	markBatchSQL = `INSERT INTO {batch} AS b (consumer, owner, slot, messages, begun_at) VALUES ($1, $2, $3, $4, {now})` + batchAgain

	batchAgain = ` ON CONFLICT (consumer, owner, slot) DO UPDATE SET messages = excluded.messages, begun_at = excluded.begun_at`

	postgresMarkBatch = `WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO {batch} AS b (consumer, owner, slot, messages, begun_at) SELECT $1, $2, CAST($3 AS integer), $4, {now} FROM s` + batchAgain

	mysqlMarkBatch = `INSERT INTO {batch} (consumer, owner, slot, messages, begun_at) VALUES ($1, $2, $3, $4, {now})
ON DUPLICATE KEY UPDATE messages = VALUES(messages), begun_at = VALUES(begun_at)`

	forgetBatchesSQL = `DELETE FROM {batch} WHERE consumer = $1 AND owner = $2`

	forgetOldBatchesSQL = `DELETE FROM {batch} WHERE consumer = $1 AND begun_at < {plus}$2{plusend}`

	batchesSQL = `SELECT CAST(coalesce({jsonagg}(b.messages), '[]') AS text) FROM (SELECT messages FROM {batch}
WHERE consumer = $1 AND owner <> $2 ORDER BY begun_at DESC LIMIT $3) AS b`

	mysqlBatches = `SELECT CAST(coalesce(JSON_ARRAYAGG(CONVERT(b.messages USING utf8mb4)), '[]') AS CHAR) FROM (SELECT messages FROM {batch}
WHERE consumer = $1 AND owner <> $2 ORDER BY begun_at DESC LIMIT $3) AS b`
)
