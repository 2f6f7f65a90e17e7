package exit

// Meaning describes one exit code for people and supervisors. The reference
// docs/reference/exit-codes.md is generated from these.
type Meaning struct {
	Code   Code
	Means  string
	Action string // what a supervisor should do
}

// Meanings lists every exit code, in order.
func Meanings() []Meaning {
	return []Meaning{
		{OK, "success", ""},
		{Failure, "failure", "restart"},
		{Usage, "wrong flags, settings or login; a missing privilege, row security", "not restart: a person must act"},
		{Lag, "`status`: lag above `--fail-if-lag`", "alert"},
		{Unreachable, "a command did not reach the server, lost its connection, or the server was read-only, a standby or out of connections. The relay never ends with it: it waits", "run the command again"},
		{Schema, "no outbox, or one of another version", "not restart: `postrider migrate`, or upgrade"},
		{Findings, "`doctor`: a finding as bad as `--fail-on`; `audit`: the books differ; `prune`: a pipe holds too many rows back; `schema check`, `schema register`: a version or a payload is incompatible", "alert"},
	}
}
