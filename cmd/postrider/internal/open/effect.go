package open

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

// need is what a flag has no effect without.
type need struct {
	ability ops.Ability // of the office; "": any store has what it takes
	only    string      // why PostgreSQL alone has it; "": any store has
	mysql   string      // why MySQL lacks it, where that is another reason; hasIt: it does not
}

// hasIt marks a flag of PostgreSQL that has its effect on MySQL too.
const hasIt = "has it"

// needs lists the flags that have no effect on some stores, by name, or by command
// and name where other commands mean something else by it. A command that a store
// lacks as a whole reports it by itself.
func needs() map[string]need {
	retention, schema := need{ability: ops.CanRetain}, need{only: "its outbox has one place and no schemas"}
	login := need{only: "it has no logins: file permissions decide", mysql: hasIt}
	return map[string]need{
		"schema": schema, "store-password-file": login, "store-password-command": login,
		"retention": retention, "retention-max-bytes": retention, "retention-rate": retention, "retention-archive": retention,
		"hold-max-rows": retention, "hold-max-bytes": retention,
		"payload-retention":      {ability: ops.CanEmpty},
		"audit-every":            {ability: ops.CanAudit},
		"keep-dead":              {ability: ops.CanOrder},
		"claim-above":            {only: "consumers cannot fetch payloads there"},
		"doctor role":            {ability: ops.CanRole},
		"doctor max-transaction": {only: "it has no long transactions to look for", mysql: hasIt},
		"doctor max-skew":        {only: "its clock is that of this machine", mysql: hasIt},
		"migrate adopt":          {only: "a copy of the file is whole as it is", mysql: hasIt},
		"migrate notify":         {only: "relays there look by themselves"},
		"migrate tail":           {only: "it has no log that wakes relays"},
		"relay wake":             {only: "relays there look by themselves"},
		"migrate partition":      {ability: ops.CanPartition},
		"migrate roles":          {ability: ops.CanRole},
		"migrate role-prefix":    {ability: ops.CanRole},
		"inbox roles":            {ability: ops.CanRole},
		"inbox role-prefix":      {ability: ops.CanRole},
	}
}

// inert are values that ask for nothing.
func inert(value string) bool {
	return slices.Contains([]string{"", "0", "0s", "off", "false", "poll"}, value)
}

// NoEffect says why a flag of a command, with that value, has no effect on the store,
// and what to do instead; "" where it has one. It does no I/O.
func (set *Settings) NoEffect(command, flag, value string) string {
	if command == "size" { // it asks no database, and refuses --store itself
		return ""
	}
	all := needs()
	n, ok := all[command+" "+flag]
	if !ok {
		n, ok = all[flag]
	}
	office := officeOf(set.Kind())
	if office != nil && office.Kind == "mysql" && n.mysql != "" {
		n.only = strings.TrimPrefix(n.mysql, hasIt)
		if n.only == "" {
			return ""
		}
	}
	if flag == "make-pipe" && !inert(value) {
		return pipesBegin(set.Kind())
	}
	if !ok || office == nil || inert(value) {
		return ""
	}
	switch {
	case n.only != "":
		return n.only
	case !office.Has(n.ability):
		return fmt.Sprintf("it lacks %s: %s", n.ability, office.Lacks[n.ability])
	}
	return ""
}

// pipesBegin says how a pipe begins where no relay makes one on demand; "" elsewhere.
func pipesBegin(kind string) string {
	switch kind {
	case "postgres", "postgresql":
		return "make the pipe with `postrider pipe add NAME --from now`"
	case "memory":
		return "each pipe begins with its relay there"
	}
	return ""
}

// officeOf returns the abilities of a kind of store, nil for one that lacks nothing
// and for an unknown one.
func officeOf(kind string) *ops.Office {
	switch kind {
	case "mysql", "mariadb":
		return mysqlstore.New(nil, nil).Office()
	case "sqlite":
		return sqlitestore.New(nil, nil).Office()
	case "memory":
		return memstore.New(nil).Office()
	}
	return nil
}
