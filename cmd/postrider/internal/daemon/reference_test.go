package daemon

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/reference"
)

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
		lines = append(lines, reference.Row("`"+m[1]+"`", m[3], strings.Join(names, ", "), m[2]))
	}
	slices.Sort(lines)
	return lines
}

func TestReferenceMetrics(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Metrics\n\n`postrider relay` serves these at `/metrics`; with several relays in one process every series has the labels `relay`, `schema`, `store` and `pipe`.\n")
	for _, part := range []struct{ dir, title, page string }{
		{".", "", relayPage(t)},
		{filepath.Join("..", "..", "..", "..", "consumer"), "## Consumers\n\nPackage `consumer/metrics` serves these; every series has the label `consumer`.\n", consumerPage(t)},
	} {
		for _, name := range declared(t, part.dir) {
			if !strings.Contains(part.page, "# HELP "+name+" ") {
				t.Errorf("the series %s is missing from the page that the reference is made of", name)
			}
		}
		text.WriteString(part.title + "\n| Series | Type | Labels | Meaning |\n|---|---|---|---|\n" + strings.Join(seriesRows(t, part.page), "") + "\n")
	}
	reference.Check(t, "metrics.md", strings.TrimSpace(text.String())+"\n")
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
		text.WriteString("\n## " + name + "\n\n| Alert | Severity | Condition | Action | See |\n|---|---|---|---|---|\n")
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Annotations["action"] == "" {
					t.Errorf("%s: the alert %s has no action", name, r.Alert)
				}
				page, found := strings.CutPrefix(r.Annotations["runbook_url"], "https://github.com/postrider/postrider/blob/main/docs/")
				file, section, named := strings.Cut(page, "#")
				if !found || !named { // TestLinks follows it
					t.Errorf("%s: the alert %s has no link to a section of the documents: %q", name, r.Alert, r.Annotations["runbook_url"])
				}
				text.WriteString(reference.Row("`"+r.Alert+"`", r.Labels["severity"], "`"+strings.Join(strings.Fields(r.Expr), " ")+"` for "+cmp.Or(r.For, "0s"), r.Annotations["action"],
					"["+strings.TrimSuffix(file, ".md")+": "+strings.ReplaceAll(section, "-", " ")+"](../"+page+")"))
			}
		}
	}
	reference.Check(t, "alerts.md", text.String())
}
