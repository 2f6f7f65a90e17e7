package operations

// actsSQL returns the statements of acts that people request and lanes' owners execute, each in
// the transaction that records the act in the table audit.
func (st *adminTexts) actsSQL(q func(string) string) {
	st.ask = q(`WITH k AS (SELECT k.pipe, k.lane, k.seq, k.key FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.seq = $2),
a AS (INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, reason, result)
  SELECT coalesce(nullif($4, ''), 'unknown'), $3, k.pipe, k.lane, k.seq, k.key, $5, 'asked' FROM k RETURNING id)
INSERT INTO {{schema}}.request (pipe, lane, seq, kind, actor, reason, ask)
SELECT k.pipe, k.lane, k.seq, $3, $4, $5, a.id FROM k, a RETURNING id`)
	st.acts = q(`SELECT id, lane, done_at IS NOT NULL, result FROM {{schema}}.request WHERE pipe = $1 AND id = ANY ($2::bigint[]) ORDER BY id`)
	st.askHold = q(`WITH l AS (SELECT CASE WHEN $6 = '' THEN $2::integer ELSE ` + laneOfKey + ` END AS lane FROM {{schema}}.outbox_info i
  WHERE $6 <> '' OR $2::integer BETWEEN 0 AND i.lanes - 1),
a AS (INSERT INTO {{schema}}.audit (actor, act, pipe, lane, key, reason, result)
  SELECT coalesce(nullif($4, ''), 'unknown'), $3, $1, l.lane, $6, $5, 'asked' FROM l RETURNING id)
INSERT INTO {{schema}}.request (pipe, lane, seq, kind, actor, reason, key, ask)
SELECT $1, l.lane, 0, $3, $4, $5, $6, a.id FROM l, a RETURNING id`)
}

// laneOfKey computes the lane of the key $6 as the outbox does.
const laneOfKey = `((hashtextextended($6, 0) & 9223372036854775807) % i.lanes)::integer`
