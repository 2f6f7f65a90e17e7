package admin

// CheckInfo describes one check of `postrider doctor`. The texts are for people: the
// reference docs/reference/doctor.md is generated from them.
type CheckInfo struct {
	Name   string // as in ops.Finding.Check
	Finds  string // what a finding reports, as a noun phrase
	Remedy string // what a person does about it; "" when the finding is for information
}

// Checks lists the checks of all doctors in the order of their findings: outbox,
// consumers, broker. A store without a database server makes some of them.
func Checks() []CheckInfo {
	const printed = "run the SQL that it prints"
	return []CheckInfo{
		{"schema", "no outbox, an older or newer schema, a migration with another text", "`postrider migrate`, or upgrade"},
		{"server", "a standby, or a server older than 15", "connect to the primary"},
		{"privileges", "missing privileges of the relay's role, by table", "run the GRANTs that it prints, or use [roles](../postgres.md#roles)"},
		{"row-security", "tables whose rows are hidden from the relay", printed},
		{"owner", "a writer that owns the outbox, or is a member of its owner: it can forge and hide messages", "use [roles](../postgres.md#roles)"},
		{"grants", "writers that may set `seq` or `xid`, change or read messages", printed},
		{"settings", "`fsync`, `autovacuum` or `track_counts` off, unsafe commits, short timeouts or read-only defaults of the relay's role", printed},
		{"durability", "commits that wait for an absent standby; `durable=replay` without a standby", "start the standby"},
		{"pooler", "statements prepared under names behind a pooler", "see [poolers](../postgres.md#connections-tls-and-passwords)"},
		{"connections", "nine of ten connections in use", "make the pools smaller"},
		{"moved", "an outbox from another server, an unfinished repair", "`postrider migrate --adopt`"},
		{"sequence", "a cache, cycles, a number below a cursor, numbers that run out", printed + ", or `postrider migrate --adopt`"},
		{"unlogged", "tables that a crash empties", printed},
		{"columns", "changed defaults; a number of lanes that differs from the relay's", printed},
		{"indexes", "missing or invalid indexes", printed},
		{"constraints", "missing or unproven constraints", printed},
		{"triggers", "foreign triggers and rules on the outbox; disabled triggers of the outbox", printed},
		{"strict-keys", "strict topics that the trigger does not number", printed},
		{"subscriptions", "logical replication into the outbox", "drop the subscription"},
		{"publications", "a publication (`FOR ALL TABLES`, Debezium's `publication.autocreate.mode`) whose updates or deletes the server rejects: retention, payload retention and erase stop", printed + ": `publish_generated_columns = stored` on PostgreSQL 18, or the identity's columns in its list"},
		{"locks", "processes that block writers or relays", "end the process"},
		{"transactions", "long open transactions in the lanes' in-flight sets: process, age, application", "end it"},
		{"prepared", "long prepared transactions, by name", "commit it or roll it back"},
		{"horizon", "snapshots, standbys and slots that keep vacuum from working; unused slots that hold the WAL", "end or drop it"},
		{"wraparound", "tables that were not frozen for long", "`VACUUM (FREEZE)`"},
		{"vacuum", "dead rows, tables without autovacuum, small tables that take much space", "`VACUUM`, or the SQL that it prints"},
		{"size", "the size of each table", ""},
		{"partitions", "no partition ready, too many partitions, numbers that run out", "start a relay, or `postrider partitions tend`"},
		{"retention", "a pipe that holds rows above the cap; settled rows that nobody removes", "`postrider pipe resume PIPE`, or start its relay; `postrider prune` with the settings of the relay"},
		{"books", "a difference that the last look at the books found", "see [the books differ](../runbook.md#the-books-differ)"},
		{"pipes", "paused pipes, lanes and keys; stopped endpoints", "`postrider journal --act pause`, then resume"},
		{"relays", "no relay; problems that live relays report: an unreachable broker, a held destination, lanes at their cap", "read the relay's log"},
		{"wake", "relays with `--wake log` or `wake=listen` that poll, and why", "see [waking](../waking.md)"},
		{"versions", "relays of several versions", "finish the upgrade"},
		{"clock", "clocks of relays, or of this host, that differ from the database's; leases do not depend on them", "repair the time service"},
		{"lanes", "lanes without an owner, or without progress at two looks", "read its relay's log"},
		{"lag", "the age of the oldest pending message", "see `relays` and `lanes`"},
		{"parked", "dead letters and messages that fail for long, by error code; blocked keys", "`postrider dead show SEQ`, then see [repair](../runbook.md#repair)"},
		{"requests", "orders of people that no relay carries out", "see `relays` and `lanes`"},
		{checkTables, "inbox tables that are missing, older than the program, or large", "`postrider migrate inbox`; `postrider prune --consumer NAME --older-than 2160h`"},
		{checkDead, "dead letters of consumers; critical when keys wait behind them", "`postrider dead list --consumer NAME`"},
		{checkRetry, "messages that consumers fail to process and try again; a warning from the third attempt on", "`postrider dead list --all --consumer NAME`"},
		{checkGaps, "keys that wait longer than `--max-lag` for a missing version", "replay it at the outbox, or `postrider guard set --consumer NAME --topic TOPIC --key KEY --version VERSION --reason WHY`"},
		{checkIdle, "failed messages a minute overdue, and stashed messages whose turn has come: no process of the consumer works. An idle consumer looks like a stopped one: compare the time of its last effect", "start it, or read its log"},
		{checkClaims, "inboxes that remember more than 90 days", "`postrider prune --consumer NAME --older-than 2160h`"},
		{checkBroker, "with `--broker` only: an unreachable broker, missing destinations of the newest messages and of the rules; it sends nothing", "create the topic"},
	}
}
