package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// names are the flags, variables and series that the program has.
type names struct {
	flags, variables map[string]bool
	series           string // the page of metrics
}

func namesOf(t *testing.T) names {
	t.Helper()
	n := names{flags: map[string]bool{"help": true, "version": true}, variables: map[string]bool{"POSTRIDER_CONFIG": true}, series: readDoc(t, "reference/metrics.md")}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		add := func(f *pflag.Flag) { n.flags[f.Name] = true }
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	root := (&app{}).root()
	visit(root)
	for _, name := range known(root) {
		n.variables[config.Env(name)] = true
	}
	return n
}

var (
	flagNamed     = regexp.MustCompile("`--([a-z][a-z-]*)")
	variableNamed = regexp.MustCompile(`\bPOSTRIDER_[A-Z_]+`)
	seriesNamed   = regexp.MustCompile("(?:`|\\b(?:sum|max|min|rate|absent|increase)[a-z ()]*\\()(postrider_[a-z_]+?)(?:_bucket|_count|_sum)?(?:`|[{\\[)])")
	brokerNamed   = regexp.MustCompile("\\b(?:kafka|nats|amqps?|rediss?|sqs|sns|pubsub)://[A-Za-z0-9][^\\s`'\"<>]*")
	yamlBlock     = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	ofSettings    = regexp.MustCompile(`(?m)^(?:store|broker|relays|routes|format):`)
)

// notNamed are names of other programs, and of the database.
func notNamed() []string {
	return []string{
		"--enable-message-ordering",            // gcloud
		"POSTRIDER_MATRIX", "POSTRIDER_UPDATE", // tests
		"POSTRIDER_OWNER_STORE", "POSTRIDER_VERSION", // the workflow's own
		"postrider_journal", "postrider_lane", "postrider_messages", "postrider_outbox", "postrider_parked", "postrider_inbox",
		"postrider_writer", "postrider_relay", "postrider_reader", "postrider_admin", "postrider_consumer", // roles
		"postrider_tail", "postrider_tail_", "postrider_rest", "postrider_move", // publications, slots, subscriptions
	}
}

// wrong returns the names in a text that the program does not have.
func (n names) wrong(text string) (found []string) {
	add := func(name string, ok bool) {
		if !ok && !slices.Contains(notNamed(), name) {
			found = append(found, name)
		}
	}
	for _, m := range flagNamed.FindAllStringSubmatch(text, -1) {
		add("--"+m[1], n.flags[m[1]])
	}
	for _, m := range variableNamed.FindAllString(text, -1) {
		add(m, n.variables[m])
	}
	for _, m := range seriesNamed.FindAllStringSubmatch(text, -1) {
		add(m[1], strings.Contains(n.series, "`"+m[1]+"`"))
	}
	return found
}

// wrongBroker returns why a URL of a broker is refused, "" when it is not. Nothing is connected to, and the files
// that it names are the reader's.
func wrongBroker(raw string) string {
	raw = strings.Replace(strings.TrimRight(raw, ".,;:)|*"), "PROJECT", "my-project", 1)
	to, err := open.Sink(&open.Settings{Broker: raw, Format: "plain"})
	switch {
	case errors.Is(err, fs.ErrNotExist) || err != nil && strings.HasSuffix(err.Error(), "no such file or directory"):
		return ""
	case err != nil:
		return err.Error()
	}
	to.Close()
	return ""
}

// TestDocsNames: flags, variables, series, URLs of brokers and settings files in the documents are those that the
// program has.
func TestDocsNames(t *testing.T) {
	n := namesOf(t)
	urls, files, schemas := 0, 0, t.TempDir()
	if err := os.Mkdir(filepath.Join(schemas, "order.placed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(schemas, "order.placed", "001.json"), []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range documentFiles(t) {
		if strings.HasPrefix(name, filepath.Join("docs", "adr")) || strings.HasPrefix(name, "bench") || strings.HasPrefix(name, "proof") {
			continue // decisions are not edited; the others are programs of their own
		}
		data, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, wrong := range n.wrong(text) {
			t.Errorf("%s: the program has no %s", name, wrong)
		}
		for _, raw := range brokerNamed.FindAllString(text, -1) {
			urls++
			if why := wrongBroker(raw); why != "" {
				t.Errorf("%s: %s: %s", name, raw, why)
			}
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(text, -1) {
			if !ofSettings.MatchString(block[1]) {
				continue
			}
			files++
			file := filepath.Join(t.TempDir(), "postrider.yml")
			text := strings.ReplaceAll(block[1], "/etc/postrider/schemas", schemas)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := cli(t, nil, "", "config", "validate", "--config", file); got.code != 0 {
				t.Errorf("%s: %s\n%s", name, got.err, block[1])
			}
		}
	}
	if urls < 20 || files < 4 {
		t.Errorf("%d URLs and %d files of settings were read", urls, files)
	}
}

// TestRelayPageNamesTheSettingsOfTheProcess: docs/relay.md lists the settings that an entry of the file's list may not have.
func TestRelayPageNamesTheSettingsOfTheProcess(t *testing.T) {
	_, list, _ := strings.Cut(readDoc(t, "relay.md"), "except those of the process: ")
	list, _, _ = strings.Cut(list, ".")
	var listed, want []string
	for _, m := range spanned.FindAllStringSubmatch(strings.ReplaceAll(list, "\n", " "), -1) {
		listed = append(listed, m[1])
	}
	root := (&app{}).root()
	relay, _, err := root.Find([]string{"relay"})
	if err != nil {
		t.Fatal(err)
	}
	add := func(f *pflag.Flag) {
		if config.IsSetting(f) && !slices.Contains(ownSettings(), f.Name) {
			want = append(want, config.Key(f.Name))
		}
	}
	relay.Flags().VisitAll(add)
	root.PersistentFlags().VisitAll(add)
	slices.Sort(listed)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(listed, want) {
		t.Errorf("docs/relay.md lists %q, the program has %q", listed, want)
	}
}

// TestRelayHelpNamesEveryParameter: the help text of the relay has every parameter that the URL of a broker may have.
func TestRelayHelpNamesEveryParameter(t *testing.T) {
	help := cli(t, nil, "", "relay", "--help").out
	receiving := []string{"visibility", "wait", "deadline", "unchecked"}
	for scheme, host := range map[string]string{
		"kafka": "h", "nats": "h", "amqp": "h", "redis": "h", "sqs": "eu-west-1", "sns": "eu-west-1", "pubsub": "my-project",
	} {
		_, of, _ := strings.Cut(help, "\n  "+scheme+"://")
		of = regexp.MustCompile(`\n  \S`).Split(of, 2)[0]
		_, list, found := strings.Cut(wrongBroker(scheme+"://"+host+"?unknown=1"), ": use ")
		if !found || of == "" {
			t.Errorf("%s: no list of parameters, or no help", scheme)
		}
		for name := range strings.SplitSeq(list, ", ") {
			shared := strings.HasPrefix(name, "tls") || strings.HasPrefix(name, "password-") // explained for all of them
			if !shared && !slices.Contains(receiving, name) && !regexp.MustCompile(`[?&]`+name+`=`).MatchString(of) {
				t.Errorf("relay --help does not name %s of %s://", name, scheme)
			}
		}
	}
}

// TestDocsNamesBite: wrong names are found.
func TestDocsNamesBite(t *testing.T) {
	n := namesOf(t)
	for _, text := range []string{
		"with `--claim`", "with `--poll-maximum 3s`", "`POSTRIDER_STORES`", "`postrider_lag_second`", "max by (relay) (postrider_lags) > 1", "`postrider_downs{part=\"handlers\"}` is 1",
	} {
		if len(n.wrong(text)) != 1 {
			t.Errorf("%q: found %q", text, n.wrong(text))
		}
	}
	if found := n.wrong("`--poll-max 1s`, `POSTRIDER_STORE`, `postrider_down{part=\"x\"}`, rate(postrider_consumer_latency_seconds_bucket[5m])"); len(found) > 0 {
		t.Errorf("found %q in right names", found)
	}
	for raw, wrong := range map[string]bool{
		"redis://HOST1,HOST2": false, "redis://h?durable=sometimes": true, "kafka://h?transactional_id=x": false, "kafka://h?acks=1": true, "nats://h?creeds=f": true,
	} {
		if (wrongBroker(raw) != "") != wrong {
			t.Errorf("%s: %q", raw, wrongBroker(raw))
		}
	}
}
