package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/starter"
)

const chartDir = "../../deploy/helm/postrider"

// same compares a file of the chart with what it must be, which POSTRIDER_UPDATE=1 writes.
func same(t *testing.T, name string, want []byte) {
	t.Helper()
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(name); err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is old (%v): POSTRIDER_UPDATE=1 go test ./cmd/postrider -run TestReferenceChart", name, err)
	}
}

// TestReferenceChart: the chart's copies of alert rules and dashboards are the newest, and its
// schema has the settings of the program but those that the chart sets itself.
func TestReferenceChart(t *testing.T) {
	for _, name := range []string{
		"../../docs/alerts/postrider.rules.yml", "../../docs/alerts/consumer.rules.yml", filepath.Join(grafanaDir, "dashboards/postrider-relay.json"),
		filepath.Join(grafanaDir, "dashboards/postrider-database.json"), filepath.Join(grafanaDir, "dashboards/postrider-consumer.json"),
	} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		same(t, filepath.Join(chartDir, "files", filepath.Base(name)), data)
	}
	text, err := json.Marshal(starter.Schema((&app{}).root(), (&settings{}).ownFlags()))
	if err != nil {
		t.Fatal(err)
	}
	var generated, values map[string]any
	if err := json.Unmarshal(text, &generated); err != nil {
		t.Fatal(err)
	}
	defs := generated["$defs"].(map[string]any)
	for _, of := range []any{generated, defs["relay"]} {
		properties := of.(map[string]any)["properties"].(map[string]any)
		for name := range properties {
			if name != config.Key(name) || slices.Contains([]string{"listen", "listen_remote", "drain"}, name) {
				delete(properties, name)
			}
		}
	}
	file := filepath.Join(chartDir, "values.schema.json")
	if text, err = os.ReadFile(file); err == nil {
		err = json.Unmarshal(text, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	values["$defs"] = defs
	values["properties"].(map[string]any)["config"] = map[string]any{"type": "object", "properties": generated["properties"], "additionalProperties": false}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(values); err != nil {
		t.Fatal(err)
	}
	same(t, file, out.Bytes())
}

// TestChartSetsWhatTheProgramHas: variables, commands, probes and series of the templates exist.
func TestChartSetsWhatTheProgramHas(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "templates", "*.yaml"))
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	var variables []string
	for _, name := range known((&app{}).root()) {
		variables = append(variables, config.Env(name))
	}
	found := regexp.MustCompile(`name: (POSTRIDER_[A-Z_]+)`).FindAllStringSubmatch(all.String(), -1)
	if len(found) < 6 {
		t.Errorf("%d variables", len(found))
	}
	for _, m := range found {
		if m[1] != "POSTRIDER_CONFIG" && !slices.Contains(variables, m[1]) {
			t.Errorf("the program has no variable %s", m[1])
		}
	}
	series := readDoc(t, "reference/metrics.md")
	for _, m := range regexp.MustCompile(`\b(postrider_[a-z_]+)\{`).FindAllStringSubmatch(all.String(), -1) {
		if !strings.Contains(series, "`"+m[1]+"`") {
			t.Errorf("no relay has the series %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`args: \[(\w+)\]`).FindAllStringSubmatch(all.String(), -1) {
		if got := cli(t, nil, "", m[1], "--help"); got.code != 0 {
			t.Errorf("the program has no command %s", m[1])
		}
	}
}
