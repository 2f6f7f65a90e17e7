package housekeeping

// partitionTexts has the statements for partitions.
type partitionTexts struct {
	note, make, roll, drop, dropDue, partitions string
}

// PartitionsSQL lists the partitions; [ScanPartitions] reads it.
const PartitionsSQL = `SELECT l.number, l.name::text, l.above, pg_total_relation_size(l.leaf), c.reltuples::bigint, k.opened_at, k.closed_at,
 (SELECT {{schema}}.partition_now()), (SELECT q.last_value FROM {{schema}}.outbox_seq q)
FROM {{schema}}.partition_list() l JOIN pg_class c ON c.oid = l.leaf LEFT JOIN {{schema}}.partition k USING (number) ORDER BY 1`

// partitionSQL returns the statements for partitions. They call functions of the schema,
// which run as the owner of the tables.
func (st *partitionTexts) partitionSQL(q func(string) string) {
	st.note = q(`SELECT {{schema}}.partition_note()`)
	st.make = q(`SELECT {{schema}}.partition_make($1::integer)`)
	st.roll = q(`SELECT {{schema}}.partition_roll($1::interval, $2::bigint)`)
	st.drop = q(`SELECT d.victim, d.removed, d.held_by FROM {{schema}}.partition_drop($1::interval, $2::boolean, $3::integer) d`)
	st.dropDue = q(`SELECT d.victims, d.doomed, coalesce(d.held_by, '') FROM {{schema}}.partition_due($1::interval, $2::bigint) d`)
	st.partitions = q(PartitionsSQL)
}
