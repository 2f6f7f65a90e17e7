package main

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	js "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/reference"
	"github.com/postrider/postrider/cmd/postrider/internal/starter"
	"github.com/postrider/postrider/internal/testserver"
)

// noEnv is an empty environment.
func noEnv(string) (string, bool) { return "", false }

// accepted reads a file as the command relay does, and returns its settings by name.
func accepted(name string) (map[string]string, error) {
	a := &app{out: io.Discard, errOut: io.Discard, lookupEnv: noEnv}
	root := a.root()
	a.configFile = name
	cmd, _, err := root.Find([]string{"relay"})
	if err != nil {
		return nil, err
	}
	cmd.InheritedFlags() // joins those of the root
	if err := a.load(cmd); err != nil {
		return nil, err
	}
	if _, _, err := a.unitSettings(); err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, name := range known(root) {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			values[name] = f.Value.String()
		}
	}
	return values, nil
}

// settingLine is a setting of the new file, in force or not.
var settingLine = regexp.MustCompile(`(?m)^#?([a-z_]+): (.*)$`)

// TestInitFileIsAccepted: every setting of the new file is one that the program accepts, with
// its default where there is one, and no setting of the program is missing.
func TestInitFileIsAccepted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new.yml")
	got := cli(t, nil, "", "init", name, "--store", "sqlite:shop.db", "--broker", "stdout:", "--log-format", "json")
	if got.code != 0 || got.out != "wrote "+name+"\n" {
		t.Fatalf("exit code %d, %s%s", got.code, got.out, got.err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: a file that may hold a password is its owner's", info, err)
	}
	values, err := accepted(name)
	want := map[string]string{"store": "sqlite:shop.db", "broker": "stdout:", "log-format": "json"}
	if err != nil || len(values) != len(want) {
		t.Errorf("in force: %v, %v", values, err)
	}
	for name, value := range want {
		if values[name] != value {
			t.Errorf("%s is %q, want %q", name, values[name], value)
		}
	}
	// Everything in force.
	all := regexp.MustCompile(`(?m)^#([a-z_]+: )`).ReplaceAllString(string(text), "$1")
	values, err = accepted(writeFile(t, all))
	if err != nil {
		t.Fatal(err)
	}
	root := (&app{}).root()
	relay, _, err := root.Find([]string{"relay"})
	if err != nil {
		t.Fatal(err)
	}
	relay.InheritedFlags()
	for _, name := range known(root) {
		f := relay.Flags().Lookup(name)
		if f == nil {
			continue
		}
		if _, found := values[name]; !found {
			t.Errorf("%s is missing from the file", name)
		}
		if f.DefValue != "" && f.DefValue != "[]" && want[name] == "" && values[name] != f.Value.String() && values[name] != f.DefValue {
			t.Errorf("%s is %q, and its default %q", name, values[name], f.DefValue)
		}
	}
	for _, m := range settingLine.FindAllStringSubmatch(string(text), -1) {
		if m[2] == "" || m[2] == `""` {
			t.Errorf("%s has no value", m[1])
		}
	}
	if problem := check(t, compileSchema(t), all); problem != nil {
		t.Errorf("the schema rejects the file: %v", problem)
	}
}

// TestInitRefuses: what would be lost or ignored is an error, and leaves no file.
func TestInitRefuses(t *testing.T) {
	dir := t.TempDir()
	kept := writeFile(t, "store: memory:\n")
	for _, tc := range []struct{ args, want string }{
		{kept, kept + " exists and is kept"},
		{filepath.Join(dir, "no", "such", "p.yml"), "cannot be written: no such file"},
		{"a.yml b.yml", "init writes one file"},
		{dir + "/a.yml --config b.yml", "--config has no effect on init"},
		{dir + "/a.yml --relay shop", "--relay has no effect on init"},
		{dir + "/a.yml --store oracle://u:hunter2@h/db", `store scheme "oracle" is unknown`},
		{dir + "/a.yml --broker stdout:x", "stdout: has no parameters"},
		{dir + "/a.yml --log-level loud", "log-level is"},
		{dir + "/a.yml --schemas " + dir, "no route validates"},
		{dir + "/a.yml --store sqlite:x.db --schema box", "--schema has no effect on a sqlite store"},
		{"--json-schema --store memory:", "--store has no effect with --json-schema"},
		{"--json-schema a.yml", "redirect its output"},
	} {
		got := cli(t, nil, "", append([]string{"init"}, strings.Fields(tc.args)...)...)
		if got.code != exit.Usage || !strings.Contains(got.err, tc.want) || strings.Count(got.err, "\n") != 1 || strings.Contains(got.err, "hunter2") {
			t.Errorf("%s: exit code %d, %s", tc.args, got.code, got.err)
		}
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "store: memory:\n" {
		t.Errorf("the old file is %q, %v", text, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("%v, %v: a refusal leaves no file", files, err)
	}
}

// schemaText is what `postrider init --json-schema` prints.
func schemaText(t *testing.T) string {
	t.Helper()
	got := cli(t, nil, "", "init", "--json-schema")
	if got.code != 0 {
		t.Fatal(got.err)
	}
	return got.out
}

func compileSchema(t *testing.T) *js.Schema {
	t.Helper()
	doc, err := js.UnmarshalJSON(strings.NewReader(schemaText(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := js.NewCompiler()
	if err := c.AddResource("postrider.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("postrider.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// check validates a YAML file as an editor does.
func check(t *testing.T, s *js.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if v, err = js.UnmarshalJSON(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestReferenceSchema: docs/reference/postrider.schema.json is what the program prints.
func TestReferenceSchema(t *testing.T) {
	path := filepath.Join(reference.Docs(t), "reference", "postrider.schema.json")
	text := schemaText(t)
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != text {
		t.Errorf("%s differs from the code (%v): POSTRIDER_UPDATE=1 go test ./cmd/postrider/... -run TestReference", path, err)
	}
}

// TestSchemaAgreesWithTheProgram: the schema and the program accept the same files.
func TestSchemaAgreesWithTheProgram(t *testing.T) {
	s := compileSchema(t)
	for _, tc := range []struct {
		yml string
		ok  bool
	}{
		{"store: sqlite:shop.db\nwindow: 256\n", true},
		{"log-level: debug\n", true},
		{"lease_ttl: 1h2m3.5s\nretry: 10s,1m30s\n", true},
		{"payload_retention: 0\nretention: off\n", true},
		{"retention: 0\n", true},
		{"rate: 1.5\nlisten_remote: true\nclaim_above: 512KiB\nhold_max_bytes: 1000\n", true},
		{"routes:\n  - {match: {topic: a, headers: {n: 1}}, format: raw, event-type: x}\n", true},
		{"windwo: 256\n", false},
		{"relays:\n  - {name: a, windwo: 1}\n", false},
		{"relays:\n  - {name: a, listen: \"127.0.0.1:1\"}\n", false},
		{"relays:\n  - {store: \"memory:\"}\n", false},
		{"relays: []\n", false},
		{"relays:\n  - {name: a b}\n", false},
		{"routes:\n  - {topci: a}\n", false},
		{"routes:\n  - {match: {key: a}}\n", false},
		{"routes:\n  - {validate: maybe}\n", false},
		{"routes:\n  - {format: xml}\n", false},
		{"window: many\n", false},
		{"lease_ttl: 3\n", false},
		{"retry: soon\n", false},
		{"listen_remote: yes\n", false},
		{"log_level: loud\n", false},
		{"store: {url: x}\n", false},
	} {
		_, err := accepted(writeFile(t, tc.yml))
		bySchema := check(t, s, tc.yml)
		if (err == nil) != tc.ok || (bySchema == nil) != tc.ok {
			t.Errorf("%s: want accepted: %v; program: %v; schema: %v", tc.yml, tc.ok, err, bySchema)
		}
	}
}

// TestSchemaHasEveryNameOfARoute: the names are those that the program lists in its error.
func TestSchemaHasEveryNameOfARoute(t *testing.T) {
	root := (&app{}).root()
	defs := starter.Schema(root, (&settings{}).ownFlags()).(map[string]any)["$defs"].(map[string]any)
	rule := defs["routes"].(map[string]any)["items"].(map[string]any)["properties"].(map[string]any)
	match := rule["match"].(map[string]any)["properties"].(map[string]any)
	for yml, properties := range map[string]map[string]any{"routes: [{x: 1}]\n": rule, "routes: [{match: {x: 1}}]\n": match} {
		_, err := accepted(writeFile(t, yml))
		if err == nil {
			t.Fatal("the name x is accepted")
		}
		_, list, _ := strings.Cut(err.Error(), "there are ")
		want := strings.Split(list, ", ")
		var have []string
		for name := range properties {
			if name == config.Key(name) {
				have = append(have, name)
			}
		}
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("the schema has %v, the program %v", have, want)
		}
	}
}

// TestSchemaAcceptsEveryExample: each YAML block of the documents and each settings file of the
// tree that sets up relays is valid, and with an unknown key it is not.
func TestSchemaAcceptsEveryExample(t *testing.T) {
	s, root := compileSchema(t), filepath.Join("..", "..")
	examples := map[string]string{}
	block := regexp.MustCompile("(?ms)^```ya?ml\n(.*?)^```")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return errorsOrSkip(err)
		}
		if d.IsDir() || filepath.Ext(path) != ".md" && d.Name() != "postrider.yml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) != ".md" {
			examples[path] = string(text)
		}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			examples[path+": "+m[1]] = m[1]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for where, text := range examples {
		if strings.HasPrefix(text, "endpoints:") { // a file of webhooks
			if list, err := config.Endpoints(writeFile(t, text)); err != nil || len(list) == 0 {
				t.Errorf("%s: %v", where, err)
			}
			continue
		}
		if regexp.MustCompile(`(?m)^(apiVersion|env|image|migrate|keda|networkPolicy|serviceMonitor|jobs|scrape_configs):`).MatchString(text) {
			continue // values of the chart, or of Kubernetes, GitHub or Prometheus
		}
		if regexp.MustCompile(`(?m)^payload:`).MatchString(text) {
			continue // a mapping of `postrider adopt`, which its guides run
		}
		checked++
		_, wrong := accepted(writeFile(t, text))
		if problem := check(t, s, text); wrong != nil || problem != nil {
			t.Errorf("%s:\nprogram: %v; schema: %v", where, wrong, problem)
		}
		bad := text + "\nfrobnicate: 1\n"
		if _, err := accepted(writeFile(t, bad)); err == nil || check(t, s, bad) == nil {
			t.Errorf("%s: an unknown key is accepted: program: %v", where, err)
		}
	}
	if checked < 4 {
		t.Errorf("%d examples only", checked)
	}
}

func errorsOrSkip(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}

// TestReadmeStart runs the README's first commands in a shell, on a PostgreSQL: the message is
// printed and counted as sent.
//
// Promises: L
func TestReadmeStart(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "## Start")
	m := fenced.FindStringSubmatch(section)
	if m == nil || m[1] != "sh" {
		t.Fatal("README.md has no section Start with a block sh")
	}
	commands := regexp.MustCompile(`(?m)\bpostrider [a-z]+`).FindAllString(m[2], -1)
	if len(commands) != 5 {
		t.Fatalf("%d commands: %v", len(commands), commands)
	}
	dir := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, "postrider")); err != nil {
		t.Fatal(err)
	}
	store := testserver.SharedPostgres(t, "18").Database(t)
	var printed string
	for line := range strings.Lines(m[2]) {
		line = strings.ReplaceAll(strings.TrimSpace(line), "postgres://postgres@localhost/postgres", store)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(line, "postrider relay", "exec postrider relay", 1))
		cmd.Dir = dir
		cmd.Env = append(config.Environ(map[string]string{"POSTRIDER_LISTEN": "127.0.0.1:0"}), asProgram+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
		var out safeBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "postrider relay") { // a person ends it when the message is there
			until(t, "the message is printed", nil, func() bool { return strings.Contains(out.String(), `"payload":{"item":"book"}`) })
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out.String())
		}
		printed = out.String()
		t.Logf("$ %s\n%s", line, printed)
	}
	if !regexp.MustCompile(`(?m)^pending +0$`).MatchString(printed) {
		t.Errorf("the last command does not show that all is sent:\n%s", printed)
	}
}
