package docsite

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

const root = "../.."

func open(t *testing.T, root string) *Site {
	t.Helper()
	s, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMenuHasEveryPage: a page that the index does not list is found by nobody.
func TestMenuHasEveryPage(t *testing.T) {
	s := open(t, root)
	menu, err := s.sidebar()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, g := range menu {
		for _, i := range g.Items {
			listed[i.Link] = true
		}
	}
	for _, page := range s.pages {
		to := strings.TrimSuffix(strings.TrimSuffix("/"+at(page), ".md"), "index")
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && !listed[to] {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

func TestLinksLeadToPagesOrTheSource(t *testing.T) {
	s := open(t, root)
	for to, want := range map[string]string{
		"guarantees.md":                    "/docs/guarantees.md",
		"../README.md#brokers":             "/index.md#brokers",
		"../examples/README.md":            "/examples/index.md",
		"../broker/kafkabroker":            "/broker/kafkabroker/index.md",
		"../deploy/helm/postrider":         source + "/tree/main/deploy/helm/postrider",
		"alerts/consumer.rules.yml":        source + "/blob/main/docs/alerts/consumer.rules.yml",
		"images/console/overview-dark.png": "/docs/images/console/overview-dark.png",
		"#here":                            "#here",
		"https://example.com/a.md":         "https://example.com/a.md",
		"nowhere.md":                       "nowhere.md",
	} {
		if got := s.target("docs/sizing.md", to); got != want {
			t.Errorf("%s leads to %s, want %s", to, got, want)
		}
	}
	const text = "[a](guarantees.md) `[b](guarantees.md)`\n```\n[c](guarantees.md)\n```\n"
	if got := s.rewrite("docs/sizing.md", text); strings.Count(got, "(/docs/") != 1 {
		t.Errorf("rewritten: %s", got)
	}
}

// build runs VitePress over a site and returns its output.
func build(t *testing.T, s *Site, out string) (string, error) {
	t.Helper()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	node, libs := testserver.NodeModules(t, here)
	stage := t.TempDir()
	if err := s.Stage(stage); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(libs, "node_modules"), filepath.Join(stage, "node_modules")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, filepath.Join(libs, "node_modules/vitepress/bin/vitepress.js"), "build", stage, "--outDir", out)
	cmd.Dir = stage
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// TestSite builds the site and checks it. POSTRIDER_SITE names the directory that is kept:
// "make test" and "make site" keep dist/site.
func TestSite(t *testing.T) {
	out := os.Getenv("POSTRIDER_SITE")
	if out == "" {
		out = filepath.Join(t.TempDir(), "site")
	}
	s := open(t, root)
	if strings.Contains(settings, "socialLinks") {
		t.Error("icons of social links come from elsewhere")
	}
	if said, err := build(t, s, out); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	wrong, err := Check(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
	for _, page := range s.pages {
		if _, err := os.Stat(filepath.Join(out, strings.TrimSuffix(at(page), ".md")+".html")); err != nil {
			t.Errorf("%s has no page: %v", page, err)
		}
	}
	index, err := filepath.Glob(filepath.Join(out, "assets/chunks/*ocalSearchIndex*.js"))
	if err != nil || len(index) == 0 {
		t.Fatalf("the site has no index to search offline (%v)", err)
	}
	var found bool
	for _, file := range index {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found = found || strings.Contains(string(b), "phantom")
	}
	if !found {
		t.Error("the index does not know the guarantees")
	}
}

// TestSiteRefusesDeadLinks: one link to nowhere and the site is not built.
func TestSiteRefusesDeadLinks(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("a second site is built in the matrix only: POSTRIDER_MATRIX=1")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"README.md": "# A\n\n[b](docs/none.md)\n", "docs/README.md": "# B\n\n**You read.**\n\n[a](../README.md)\n"} {
		if err := write(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	said, err := build(t, open(t, dir), filepath.Join(dir, "out"))
	if err == nil || !strings.Contains(said, "dead link") {
		t.Errorf("built with a dead link: %v\n%s", err, said)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index.html": `<h1 id="a"></h1><a href="#a"></a><a href="/b.html#c"></a><a href="https://example.com"></a>` +
			`<a href="#z"></a><a href="/none.html"></a><script src="https://example.com/x.js"></script>`,
		"b.html":  `<h1 id="c"></h1><a href="/"></a><a href="/b.html#d"></a>`,
		"a.css":   `@font-face { src: url(https://example.com/f.woff2) }`,
		"good.js": `const help = "https://example.com"`,
	} {
		if err := write(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	wrong, err := Check(dir)
	if err != nil || len(wrong) != 5 {
		t.Errorf("found %q, %v", wrong, err)
	}
}
