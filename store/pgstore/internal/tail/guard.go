package tail

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Application is the application name of the session that reads the log.
const Application = "postrider tail"

// slotPrefix begins the names of slots. The boot id of the relay follows.
const slotPrefix = "postrider_tail_"

// The slots and walsenders that must stay free for standbys and others.
const (
	SlotsLeft   = 2
	SendersLeft = 3
)

// limits are constants, but for tests.
type limits struct {
	hold  int64         // the most WAL, in bytes, that a slot may hold back
	busy  float64       // messages a second from which polling costs less
	soon  time.Duration // the pause after a lost connection
	again time.Duration // the pause after anything else
}

func usual() limits {
	return limits{hold: 1 << 30, busy: 5_000, soon: time.Second, again: 10 * time.Second}
}

// Publication is the name of the publication that `postrider migrate --tail` makes.
func Publication(schema string) string {
	return schema[:min(len(schema), 58)] + "_tail"
}

// OffError is the reason why the log is not read.
type OffError struct {
	Why  string
	Fix  string // "": it passes by itself
	soon bool   // the log can be tried again soon
	err  error
}

func (o *OffError) Error() string { return o.Why }
func (o *OffError) Unwrap() error { return o.err }

func because(fix, format string, args ...any) *OffError {
	return &OffError{Why: fmt.Sprintf(format, args...), Fix: fix}
}

// checkSQL asks what must hold. $1 is the publication, $2 our slot, or
// nothing before there is one, $3 the schema.
const checkSQL = `WITH o AS (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $3 AND c.relname = 'outbox')
SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('wal_level'), current_setting('synchronous_standby_names'),
 current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)::int,
 current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_get_wal_senders())::int,
 EXISTS (SELECT FROM pg_publication p WHERE p.pubname = $1 AND p.pubinsert AND (p.puballtables
   OR EXISTS (SELECT FROM pg_publication_rel t WHERE t.prpubid = p.oid AND t.prrelid = (SELECT oid FROM o) AND t.prqual IS NULL))),
 coalesce((SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) FROM pg_replication_slots s WHERE s.slot_name = $2), 0)::bigint,
 EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = (SELECT oid FROM o) AND t.tgname = 'postrider_wake')`

// checked is the answer.
type checked struct {
	pid            uint32
	standby        bool
	walLevel, sync string
	slots, senders int
	published      bool
	held           int64
	notifies       bool // writers notify
}

// check asks the server, through the pool, whether the log may be read. slot is ours, "" before
// there is one.
func (b *Bell) check(ctx context.Context, slot string) (c checked, err error) {
	conn, err := b.Pool.Acquire(ctx)
	if err != nil {
		return c, err
	}
	defer conn.Release()
	err = conn.QueryRow(ctx, checkSQL, Publication(b.Schema), slot, b.Schema).
		Scan(&c.pid, &c.standby, &c.walLevel, &c.sync, &c.slots, &c.senders, &c.published, &c.held, &c.notifies)
	if err != nil {
		return c, err
	}
	pooler := c.pid != conn.Conn().PgConn().PID()
	if slot == "" { // the session will take one of each
		c.slots, c.senders = c.slots-1, c.senders-1
	}
	if reason := c.reason(b.Schema, pooler, b.limits.hold); reason != nil {
		return c, reason
	}
	return c, nil
}

// Check returns nil if the log may be read, an *OffError if not, or the error of asking. It opens
// no replication connection.
func (b *Bell) Check(ctx context.Context) error {
	_, err := b.check(ctx, "")
	return err
}

// reason returns why the log may not be read, or nil.
func (c *checked) reason(schema string, pooler bool, hold int64) *OffError {
	switch name := standbyNamed(c.sync); {
	case pooler:
		return because("connect to the server directly, or leave wake=log out", "a pooler is in front of the server, and carries no replication")
	case c.standby:
		return because("connect to the primary", "the server is a standby")
	case c.walLevel != "logical":
		return because("set wal_level = logical and restart the server (rds.logical_replication = 1, cloudsql.logical_decoding = on)", "wal_level is %s", c.walLevel)
	case name != "":
		return because("name the standbys in synchronous_standby_names", "synchronous_standby_names has %q: the relay would count as a standby for which commits wait", name)
	case !c.published:
		return because("run `postrider migrate --tail` as the owner of the outbox", "the publication %q of %s.outbox is missing, or hides rows", Publication(schema), schema)
	case c.slots < SlotsLeft:
		return because(fmt.Sprintf("raise max_replication_slots: %d must stay free beside the relay's", SlotsLeft), "too few replication slots are free")
	case c.senders < SendersLeft:
		return because(fmt.Sprintf("raise max_wal_senders: %d must stay free beside the relay's", SendersLeft), "too few walsenders are free")
	case c.held > hold:
		return because("end the oldest transaction: `postrider doctor --only transactions`", "the slot held back %d MiB of WAL", c.held>>20)
	}
	return nil
}

// standbyNamed returns the element of synchronous_standby_names that would make our session a
// synchronous standby, or "".
func standbyNamed(names string) string {
	for _, name := range elements(names) {
		if name == "*" || strings.EqualFold(name, Application) {
			return name
		}
	}
	return ""
}

// elements are the words of synchronous_standby_names: names, quoted or not, and the keywords
// and numbers around them, which are taken for names too.
func elements(list string) (all []string) {
	word, quoted := "", false
	end := func() {
		if word != "" {
			all = append(all, word)
		}
		word = ""
	}
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"' && quoted && i+1 < len(list) && list[i+1] == '"':
			word += `"`
			i++
		case c == '"':
			quoted = !quoted
			end()
		case !quoted && strings.ContainsRune(" \t\r\n,()", rune(c)):
			end()
		default:
			word += string(c)
		}
	}
	end()
	return all
}

// refused explains an error of the session.
func refused(doing string, err error) *OffError {
	var known *OffError
	if errors.As(err, &known) {
		return known
	}
	o := &OffError{Why: doing + ": " + err.Error(), err: err}
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, errProtocol):
		o.Fix = "report it, with the version of the server"
	case !errors.As(err, &pg):
		o.soon = true
	case pg.Code == "42501":
		o.Why = "the relay's role may not read the log: " + pg.Message
		o.Fix = "ALTER ROLE the relay's role REPLICATION (RDS: GRANT rds_replication; Cloud SQL, Azure: ALTER ROLE ... REPLICATION)"
	case pg.Code == "28000":
		o.Why, o.Fix = "the server rejected the replication connection: "+pg.Message, "allow the relay's role and database in pg_hba.conf"
	case pg.Code == "28P01":
		o.Fix = "check the password"
	case pg.Code == "55P03":
		o.Why = "an open transaction keeps the slot from starting"
		o.Fix = "end it: `postrider doctor --only transactions`"
	case pg.Code == "53400", pg.Code == "53300": // all slots, all walsenders are in use
		o.Why, o.Fix = pg.Message, "raise max_replication_slots and max_wal_senders"
	case pg.Code == "08P01" && strings.Contains(pg.Message, "replication"), pg.Code == "0A000":
		o.Why, o.Fix = "the server or a pooler in front of it carries no replication: "+pg.Message, "connect to the server directly, or leave wake=log out"
	case pg.Code == "55000": // wal_level
		o.Why, o.Fix = pg.Message, "set wal_level = logical and restart the server"
	default: // the server is shutting down or starting, somebody ended the session
		o.soon = true
	}
	return o
}
