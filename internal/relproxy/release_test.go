//go:build unix

package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// repository is a tree of four modules under git: a root, a store that requires
// it, a program that requires both, and one that is not published.
func repository(t *testing.T) string {
	t.Helper()
	requires := func(paths ...string) string {
		var b strings.Builder
		for _, p := range paths {
			fmt.Fprintf(&b, "\t%s v0.0.0\n", p)
		}
		return "\ngo 1.25\n\nrequire (\n" + b.String() + ")\n"
	}
	root := tree(t, map[string]string{
		"LICENSE":                "text\n",
		".ci/run":                "true\n", // dot files are part of a module's archive
		".gitignore":             "/dist/\n",
		"go.mod":                 "module " + prefix + "\n\ngo 1.25\n",
		"doc.go":                 "package postrider\n\nconst Word = \"outbox\"\n",
		"go.work":                "go 1.25\n\nuse (\n\t.\n\t./store/pgstore\n\t./cmd/postrider\n\t./bench\n)\n\nreplace " + prefix + " v0.0.0 => ./\n\nreplace " + prefix + "/store/pgstore v0.0.0 => ./store/pgstore\n",
		"store/pgstore/go.mod":   "module " + prefix + "/store/pgstore\n" + requires(prefix),
		"store/pgstore/store.go": "package pgstore\n\nimport \"" + prefix + "\"\n\nconst Name = postrider.Word\n",
		"cmd/postrider/go.mod":   "module " + prefix + "/cmd/postrider\n" + requires(prefix, prefix+"/store/pgstore"),
		"cmd/postrider/main.go":  "package main\n\nimport (\n\t\"runtime/debug\"\n\n\t\"" + prefix + "\"\n\t\"" + prefix + "/store/pgstore\"\n)\n\nfunc main() {\n\tinfo, _ := debug.ReadBuildInfo()\n\tprintln(postrider.Word, pgstore.Name, info.Main.Version)\n}\n",
		"bench/go.mod":           "module " + prefix + "/bench\n" + requires(prefix),
		"bench/bench.go":         "package bench\n\nimport \"" + prefix + "\"\n\nconst Name = postrider.Word\n",
	})
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"add", "--all"},
		{"-c", "user.name=t", "-c", "user.email=t@t.invalid", "commit", "--quiet", "--message", "all"},
	} {
		gitIn(t, root, args...)
	}
	return root
}

func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program twice")
	}
	root := repository(t)
	before := gitIn(t, root, "rev-parse", "HEAD")
	here := platform{runtime.GOOS, runtime.GOARCH}
	r := &release{root: root, version: "v0.1.0", program: "cmd/postrider", platforms: []platform{here}, dist: filepath.Join(root, "dist")}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}

	tags := strings.Fields(gitIn(t, root, "tag", "--list"))
	if want := []string{"cmd/postrider/v0.1.0", "store/pgstore/v0.1.0", "v0.1.0"}; !slices.Equal(tags, want) {
		t.Errorf("tags = %v, want %v", tags, want)
	}
	for _, dir := range []string{"cmd/postrider", "bench"} {
		if text := gitIn(t, root, "show", "v0.1.0:"+dir+"/go.mod"); strings.Contains(text, version) || !strings.Contains(text, prefix+" v0.1.0") {
			t.Errorf("%s/go.mod of the release requires:\n%s", dir, text)
		}
	}
	if sum := gitIn(t, root, "show", "v0.1.0:cmd/postrider/go.sum"); !strings.Contains(sum, prefix+"/store/pgstore v0.1.0 h1:") {
		t.Errorf("cmd/postrider/go.sum has no sum of the store:\n%s", sum)
	}
	if after := gitIn(t, root, "rev-parse", "HEAD"); after != before || gitIn(t, root, "status", "--porcelain") != "" {
		t.Error("the working tree has changed")
	}

	name := here.binary("postrider", "v0.1.0")
	program := filepath.Join(r.dist, name)
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(r.dist, "SHA256SUMS"))
	if want := fmt.Sprintf("%x  %s\n", sha256.Sum256(b), name); err != nil || string(sums) != want {
		t.Errorf("SHA256SUMS = %q, %v; want %q", sums, err, want)
	}
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "outbox outbox v0.1.0" {
		t.Errorf("the program says %q, %v", out, err)
	}

	if err := r.run(t.Context()); err == nil || !strings.Contains(err.Error(), "has tags already") {
		t.Errorf("a second release of the same version: %v", err)
	}
}

func TestReleaseRefuses(t *testing.T) {
	root := repository(t)
	for _, v := range []string{"", "0.1.0", "v1", "v0.1", "v01.0.0", "v0.1.0+build"} {
		r := &release{root: root, version: v}
		if err := r.run(t.Context()); err == nil || !strings.Contains(err.Error(), "is not like v0.1.0") {
			t.Errorf("version %q: %v", v, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "new.go"), []byte("package postrider\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &release{root: root, version: "v0.1.0"}
	if err := r.run(t.Context()); err == nil || !strings.Contains(err.Error(), "uncommitted changes") {
		t.Errorf("a tree with uncommitted changes: %v", err)
	}
}

func TestModulesInCircle(t *testing.T) {
	root := tree(t, map[string]string{
		"a/go.mod": "module " + prefix + "/a\n\ngo 1.25\n\nrequire " + prefix + "/b v0.0.0\n",
		"b/go.mod": "module " + prefix + "/b\n\ngo 1.25\n\nrequire " + prefix + "/a v0.0.0\n",
	})
	modules, err := findModules(root)
	if err != nil {
		t.Fatal(err)
	}
	if sorted, err := inOrder(modules); err == nil {
		t.Errorf("sorted a circle: %v", sorted)
	}
}
