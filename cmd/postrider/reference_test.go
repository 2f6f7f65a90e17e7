package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// reference compares a generated page of docs/reference with the file, which
// POSTRIDER_UPDATE=1 writes.
func reference(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "reference", name)
	text = "<!-- Generated from the code: POSTRIDER_UPDATE=1 go test ./cmd/postrider -run TestReference -->\n\n" + text
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != text {
		t.Errorf("docs/reference/%s differs from the code (%v): POSTRIDER_UPDATE=1 go test ./cmd/postrider -run TestReference", name, err)
	}
}

// tableRow is a line of a table.
func tableRow(cells ...string) string {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	return strings.TrimRight("| "+strings.Join(cells, " | "), " ") + " |\n"
}

func TestReferenceDoctor(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Checks of `postrider doctor`\n\nA finding ten times over its limit is critical. The limits of lag, open transactions and clocks are flags. Every finding prints its own fix.\n\n")
	text.WriteString("| Check | Finds | Remedy |\n|---|---|---|\n")
	for _, c := range admin.Checks() {
		text.WriteString(tableRow("`"+c.Name+"`", c.Finds, c.Remedy))
	}
	reference(t, "doctor.md", text.String())
}

func TestReferenceExitCodes(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Exit codes of `postrider`\n\n| Exit code | Means | A supervisor should |\n|---|---|---|\n")
	for i, c := range exit.Meanings() {
		if int(c.Code) != i {
			t.Errorf("exit code %d stands at place %d", int(c.Code), i)
		}
		text.WriteString(tableRow(fmt.Sprint(int(c.Code)), c.Means, c.Action))
	}
	text.WriteString("\nFor systemd: `RestartPreventExitStatus=2 5`.\n")
	reference(t, "exit-codes.md", text.String())
}

func TestReferenceCommands(t *testing.T) {
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	var text strings.Builder
	text.WriteString("# Commands and flags\n\nA setting may also come from the environment (`--log-level` is `POSTRIDER_LOG_LEVEL`) or from the YAML file (`log_level`).\n\n## Every command\n\n")
	flagTable(&text, root.PersistentFlags())
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c != root && !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			fmt.Fprintf(&text, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
			if c.Runnable() {
				fmt.Fprintf(&text, "\n`%s`\n", c.UseLine())
			}
			if c.LocalNonPersistentFlags().HasAvailableFlags() {
				text.WriteString("\n")
				flagTable(&text, c.LocalNonPersistentFlags())
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	reference(t, "commands.md", text.String())
}

func flagTable(text *strings.Builder, fs *pflag.FlagSet) {
	text.WriteString("| Flag | Setting | Default | Meaning |\n|---|---|---|---|\n")
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		setting, standard := "", f.DefValue
		if config.IsSetting(f) {
			setting = "yes"
		}
		if standard == "[]" || standard == "false" {
			standard = ""
		}
		name := "`--" + f.Name
		if kind, _ := pflag.UnquoteUsage(f); kind != "" {
			name += " " + strings.ToUpper(kind)
		}
		text.WriteString(tableRow(name+"`", setting, standard, f.Usage))
	})
}

// seriesRows are the HELP lines of a page of metrics, with the labels of its samples.
func seriesRows(t *testing.T, page string) (lines []string) {
	t.Helper()
	label := regexp.MustCompile(`[{,]([a-z]+)="`)
	for _, m := range regexp.MustCompile(`(?m)^# HELP (postrider_\S+) (.*)\n# TYPE \S+ (\S+)$`).FindAllStringSubmatch(page, -1) {
		labels := map[string]bool{}
		for _, sample := range regexp.MustCompile(`(?m)^`+m[1]+`(?:_bucket)?\{.*$`).FindAllString(page, -1) {
			for _, l := range label.FindAllStringSubmatch(sample, -1) {
				labels[l[1]] = true
			}
		}
		for _, common := range []string{"relay", "schema", "store", "pipe", "consumer", "le"} {
			delete(labels, common)
		}
		var names []string
		for l := range labels {
			names = append(names, "`"+l+"`")
		}
		slices.Sort(names)
		lines = append(lines, tableRow("`"+m[1]+"`", m[3], strings.Join(names, ", "), m[2]))
	}
	slices.Sort(lines)
	return lines
}

// declared finds the names of the series in the source under dir.
func declared(t *testing.T, dir string) (names []string) {
	t.Helper()
	series := regexp.MustCompile(`(?:(\bp\.)(?:counter|gauge|histogram)|\b[dh])\("([a-z_]+)", "`)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range series.FindAllSubmatch(source, -1) {
			if len(m[1]) > 0 {
				names = append(names, "postrider_consumer_"+string(m[2]))
			} else {
				names = append(names, "postrider_"+string(m[2]))
			}
		}
		return err
	})
	if err != nil || len(names) < 10 {
		t.Fatalf("%d series declared in %s, %v", len(names), dir, err)
	}
	return names
}

func TestReferenceMetrics(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Metrics\n\n`postrider relay` serves these at `/metrics`; with several relays in one process every series has the labels `relay`, `schema`, `store` and `pipe`.\n")
	for _, part := range []struct{ dir, title, page string }{
		{".", "", relayPage(t)},
		{filepath.Join("..", "..", "consumer"), "## Consumers\n\nPackage `consumer/metrics` serves these; every series has the label `consumer`.\n", consumerPage(t)},
	} {
		for _, name := range declared(t, part.dir) {
			if !strings.Contains(part.page, "# HELP "+name+" ") {
				t.Errorf("the series %s is missing from the page that the reference is made of", name)
			}
		}
		text.WriteString(part.title + "\n| Series | Type | Labels | Meaning |\n|---|---|---|---|\n" + strings.Join(seriesRows(t, part.page), "") + "\n")
	}
	reference(t, "metrics.md", strings.TrimSpace(text.String())+"\n")
}

func TestReferenceAlerts(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Alerts\n\nPrometheus rules: [postrider.rules.yml](../alerts/postrider.rules.yml) and [consumer.rules.yml](../alerts/consumer.rules.yml).\n")
	for _, name := range []string{"postrider.rules.yml", "consumer.rules.yml"} {
		var file struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr, For    string
					Labels, Annotations map[string]string
				}
			}
		}
		data, err := os.ReadFile(filepath.Join(alertsDir, name))
		if err == nil {
			err = yaml.Unmarshal(data, &file)
		}
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("\n## " + name + "\n\n| Alert | Severity | Condition | Action |\n|---|---|---|---|\n")
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Annotations["action"] == "" {
					t.Errorf("%s: the alert %s has no action", name, r.Alert)
				}
				text.WriteString(tableRow("`"+r.Alert+"`", r.Labels["severity"], "`"+strings.Join(strings.Fields(r.Expr), " ")+"` for "+cmp.Or(r.For, "0s"), r.Annotations["action"]))
			}
		}
	}
	reference(t, "alerts.md", text.String())
}
