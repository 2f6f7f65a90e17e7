package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// everywhere lists, by command, the flags that have an effect on every store on which
// the command works. "" are those of all commands. A command that works on some stores
// only is in TestMissingAbilities.
func everywhere() map[string]string {
	const (
		match  = "all id key lane since topic type until versions "
		act    = "dry-run rate reason wait yes "
		errors = "class code error "
	)
	return map[string]string{
		"":                "config store format broker pipe output actor log-level log-format relay schemas registry",
		"adopt":           "dialect drain handed in-place layout mapping mirror print-mapping print-sql reason take-in-progress topic wait yes",
		"adopt mirror":    "every once",
		"adopt undo":      "reason wait yes",
		"audit":           "every full reason reopen",
		"check":           "newest samples",
		"config show":     "all",
		"console":         "consumers listen proxy proxy-groups-header proxy-role proxy-secret-file proxy-user-header role tls-cert tls-key tokens",
		"console token":   "expires role",
		"dead":            "consumer",
		"dead discard":    match + act + errors,
		"dead list":       "after all code group id key limit topic",
		"dead retry":      match + act + errors + "set-header set-topic unset-header",
		"dead show":       "payload",
		"demo":            "console keep kill orders rate",
		"doctor":          "all consumer fail-on max-lag only timeout",
		"enqueue":         "batch",
		"erase":           "dry-run key reason topic wait",
		"guard":           "consumer topic",
		"guard list":      "after limit",
		"guard reset":     "key reason",
		"guard set":       "key reason version",
		"guard show":      "key",
		"health":          "listen ready",
		"init":            "json-schema",
		"journal":         "act before by consumer id key limit since",
		"migrate":         "dry-run lanes print-sql wait",
		"message show":    "at consumer",
		"migrate down":    "yes",
		"migrate up":      "to",
		"order cancel":    "reason",
		"partitions tend": "dry-run every max-bytes older-than reason",
		"pause":           "endpoint key lane reason wait",
		"pipe add":        "from header key reason topic type",
		"pipe pause":      "reason",
		"pipe remove":     "forfeit reason",
		"pipe resume":     "reason",
		"prune":           "reason archive consumer dry-run every horizon loop max-bytes older-than rate topic hold-max-bytes hold-max-rows",
		"relay":           "drain instance lease-ttl listen listen-remote max-attempts max-lanes page poll-max rate retry skip-dead status-every window",
		"replay":          match + act + "overtake",
		"resume":          "endpoint key lane reason wait",
		"schema check":    "against content mode protobuf rows sarif subject",
		"schema register": "dry-run subject",
		"schema diff":     "content protobuf",
		"size":            "bytes consumers header-bytes horizon key-bytes lanes name-bytes rate relays retention",
		"skip":            match + act + errors,
		"status":          "consumer every fail-if-lag lanes watch",
		"strict add":      "reason",
		"strict remove":   "reason",
		"top":             "every",
	}
}

// valueFor is a value that a flag takes and that asks for something.
func valueFor(f *pflag.Flag) string {
	switch {
	case f.Name == "notify":
		return "on"
	case f.Name == "retention":
		return "24h"
	}
	switch f.Value.Type() {
	case "bool":
		return "true"
	case "duration":
		return "1h"
	case "int", "int64", "float64", "size":
		return "7"
	}
	return "x"
}

// Every flag of every command has an effect on every store, or is refused there in one
// line that names the flag and the store.
func TestNoFlagIsIgnored(t *testing.T) {
	work := everywhere()
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", sqlite)
	refused := map[string]int{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		path := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "postrider"), " ")
		if c.Hidden || strings.HasPrefix(path, "completion") || path == "help" {
			return
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			limited := 0
			for _, url := range []string{"postgres:", sqlite, "memory:"} {
				set := open.Settings{Store: url}
				why := set.NoEffect(c.Name(), f.Name, valueFor(f))
				if why == "" {
					continue
				}
				limited++
				args := append(strings.Fields(path), "--"+f.Name+"="+valueFor(f), "--store", url)
				if path == "" {
					args = append([]string{"status"}, args...)
				}
				got := cli(t, nil, "", args...)
				want := "postrider: --" + f.Name + " has no effect on a " + set.Kind() + " store: "
				if got.code != exit.Usage || !strings.HasPrefix(got.err, want) || strings.Count(got.err, "\n") != 1 {
					t.Errorf("%v: exit code %d\n%swant one line that begins with %q", args, got.code, got.err, want)
				}
				refused[set.Kind()]++
			}
			listed := slices.Contains(strings.Fields(work[path]), f.Name)
			if listed == (limited > 0) && !(path == "prune" && listed) {
				t.Errorf("postrider %s --%s: refused on %d stores, and listed as working on every store: %v", path, f.Name, limited, listed)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{out: io.Discard, errOut: io.Discard}).root())
	for kind, least := range map[string]int{"sqlite": 20, "memory": 30} {
		if refused[kind] < least {
			t.Errorf("%d flags were refused on a %s store, at least %d have no effect there", refused[kind], kind, least)
		}
	}
}

// The log names a setting of the environment or the file that has no effect on the store.
func TestAnIgnoredSettingIsLogged(t *testing.T) {
	dir := t.TempDir()
	sqlite := "sqlite:" + filepath.Join(dir, "shop.db")
	mustCLI(t, "", "migrate", "--store", sqlite)
	yml := filepath.Join(dir, "p.yml")
	if err := os.WriteFile(yml, []byte("store: "+sqlite+"\nschema: box\nkeep_dead: 2160h\npayload_retention: 12h\nretention: 24h\nwake: listen\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := cli(t, nil, "", "status", "-c", yml)
	if got.code != 0 || strings.Count(got.err, "\n") != 1 || !strings.Contains(got.err, `msg="setting ignored" setting=schema store=sqlite`) {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
	got = cli(t, map[string]string{"POSTRIDER_AUDIT_EVERY": "5m"}, "", "relay", "-c", yml, "--broker", "none:")
	if !strings.Contains(got.err, `broker scheme "none" is unknown`) {
		t.Errorf("the relay ends with\n%s", got.err)
	}
	for _, name := range []string{"schema", "payload-retention", "audit-every", "wake"} {
		if strings.Count(got.err, `msg="setting ignored" setting=`+name+" store=sqlite") != 1 {
			t.Errorf("%s is not named once:\n%s", name, got.err)
		}
	}
	if strings.Contains(got.err, "setting=retention") || strings.Contains(got.err, "setting=keep-dead") {
		t.Errorf("retention and the removal of dead letters work on SQLite:\n%s", got.err)
	}
}

// TestConsumerFlags: what selects or changes among a relay's dead letters is refused for those
// of a consumer, unless it means the same there.
func TestConsumerFlags(t *testing.T) {
	store := "sqlite:" + filepath.Join(t.TempDir(), "billing.db")
	buried(t, store, "billing", "a", "b", "c", "d")
	works := map[string]string{
		"dead discard": "all id key topic type dry-run reason yes", "dead retry": "all id key topic type dry-run reason yes",
		"dead list": "after all limit", "dead show": "payload", "prune": "horizon older-than reason topic",
	}
	root, refused := (&app{out: io.Discard, errOut: io.Discard}).root(), 0
	for path, flags := range works {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			t.Fatal(err)
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Name == "consumer" || slices.Contains(strings.Fields(flags+" payload-retention"), f.Name) {
				return
			}
			args := append(strings.Fields(path), "--store", store, "--consumer", "billing", "--"+f.Name+"="+valueFor(f))
			switch path {
			case "dead show":
				args = append(args, "a")
			case "dead discard", "dead retry":
				args = append(args, "--topic", "orders", "--reason", "x", "--yes")
			}
			got := cli(t, nil, "", args...)
			if got.code != exit.Usage || !strings.Contains(got.err, "--"+f.Name+" does not go with --consumer") {
				t.Errorf("%v: exit code %d, %s%s", args, got.code, got.out, got.err)
			}
			refused++
		})
	}
	if refused < 20 {
		t.Errorf("%d flags were refused", refused)
	}
	got := cli(t, nil, "", "dead", "discard", "--store", store, "--consumer", "billing", "--topic", "orders", "--versions", "2-3", "--reason", "x", "--yes")
	if got.code != exit.Usage {
		t.Errorf("exit code %d, %s%s", got.code, got.out, got.err)
	}
	if out := mustCLI(t, "", "dead", "list", "--store", store, "--consumer", "billing", "-o", "json"); strings.Count(out, `"id"`) != 4 {
		t.Errorf("a refused command changed the dead letters: %s", out)
	}
}

// TestAnEmptySelection: a flag that selects is refused without a value, such as that of a
// variable of a script that is not set. It would select everything.
func TestAnEmptySelection(t *testing.T) {
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", sqlite)
	yml := writeFile(t, "relays: [{name: a, store: '"+sqlite+"'}]\n")
	for _, line := range []string{
		"dead discard --topic t --key= --reason x --yes", "dead discard --topic t --id= --reason x --yes", "dead discard --topic t --id a,,b --reason x --yes",
		"dead retry --topic t --code= --reason x --yes", "dead retry --topic t --error= --reason x --yes", "dead retry --topic t --class= --reason x --yes",
		"skip --topic t --since= --reason x --yes", "skip --topic t --type= --reason x --yes", "replay --key k --until= --reason x --yes",
		"replay --key k --topic= --reason x --yes", "replay --key k --versions= --reason x --yes",
		"dead discard --consumer= --all --reason x --yes", "dead list --consumer=", "prune --consumer= --older-than 720h", "prune --older-than 720h --archive=",
		"dead discard --pipe= --all --reason x --yes", "migrate --schema=", "pipe add p --from now --topic=", "status --consumer=", "migrate -c " + yml + " --relay=",
	} {
		args := append(strings.Fields(line), "--store", sqlite)
		if got := cli(t, nil, "", args...); got.code != exit.Usage || !strings.Contains(got.err, " is empty: give it a value, or leave it out") {
			t.Errorf("%s: exit code %d, %s%s", line, got.code, got.out, got.err)
		}
	}
	for _, line := range []string{
		"dead discard --topic t --lane -5 --reason x --yes", "dead discard --topic t --lane -1 --reason x --yes", "replay --key k --lane 65548 --reason x --yes",
		"skip --lane 4096 --reason x --yes", "pause --lane 65548 --reason x", "resume --lane -1 --reason x",
	} {
		if got := cli(t, nil, "", append(strings.Fields(line), "--store", sqlite)...); got.code != exit.Usage || !strings.Contains(got.err, "a lane is a number from 0 to 4095") {
			t.Errorf("%s: exit code %d, %s%s", line, got.code, got.out, got.err)
		}
	}
}

// A flag that needs another flag is refused without it.
func TestFlagsThatNeedEachOther(t *testing.T) {
	for _, line := range []string{
		"status --every 2s", "audit --reason r", "prune --every 2s", "prune --topic t", "prune --horizon 24h", "partitions tend --dry-run", "partitions tend --max-bytes 7",
		"dead list --consumer c --topic t", "dead list --group --all", "dead list --consumer c --group", "dead list --consumer c --all --code x", "doctor --consumer c --max-lag 2s",
	} {
		if got := cli(t, nil, "", append(strings.Fields(line), "--store", "sqlite:none.db")...); got.code != exit.Usage || !strings.Contains(got.err, "--") {
			t.Errorf("%s: exit code %d: %s", line, got.code, got.err)
		}
	}
}
