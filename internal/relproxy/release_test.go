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

// repository is a tree of seven modules under git: a root, a store that requires it, a
// program that requires both and one of the internal ones, and three that are not published.
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
		"go.work":                "go 1.25\n\nuse (\n\t.\n\t./store/pgstore\n\t./cmd/postrider\n\t./bench\n\t./internal/lab\n\t./internal/pack\n\t./internal/tests\n)\n\nreplace " + prefix + " v0.0.0 => ./\n\nreplace " + prefix + "/store/pgstore v0.0.0 => ./store/pgstore\n\nreplace " + prefix + "/internal/lab v0.0.0 => ./internal/lab\n",
		"store/pgstore/go.mod":   "module " + prefix + "/store/pgstore\n" + requires(prefix),
		"store/pgstore/store.go": "package pgstore\n\nimport \"" + prefix + "\"\n\nconst Name = postrider.Word\n",
		"cmd/postrider/go.mod":   "module " + prefix + "/cmd/postrider\n" + requires(prefix, prefix+"/store/pgstore", prefix+"/internal/lab"),
		"cmd/postrider/main.go":  "package main\n\nimport (\n\t\"runtime/debug\"\n\n\t\"" + prefix + "\"\n\t_ \"" + prefix + "/internal/lab\"\n\t\"" + prefix + "/store/pgstore\"\n)\n\nfunc main() {\n\tinfo, _ := debug.ReadBuildInfo()\n\tprintln(postrider.Word, pgstore.Name, info.Main.Version)\n}\n",
		"bench/go.mod":           "module " + prefix + "/bench\n" + requires(prefix),
		"internal/lab/go.mod":    "module " + prefix + "/internal/lab\n\ngo 1.25\n",
		"internal/lab/lab.go":    "package lab\n",
		"internal/tests/go.mod":  "module " + prefix + "/internal/tests\n\ngo 1.25\n",
		"internal/tests/doc.go":  "package tests\n",
		"internal/pack/go.mod":   "module " + prefix + "/internal/pack\n\ngo 1.25\n",
		"internal/pack/main.go":  "package main\n\nimport (\n\t\"os\"\n\t\"strings\"\n)\n\nfunc main() {\n\tif err := os.WriteFile(os.Args[8]+\"/packed\", []byte(strings.Join(os.Args[1:7], \" \")), 0o644); err != nil {\n\t\tpanic(err)\n\t}\n}\n",
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
	here, foreign := platform{runtime.GOOS, runtime.GOARCH}, platform{"linux", "arm64"}
	if foreign == here {
		foreign.arch = "amd64"
	}
	r := &release{root: root, version: "v0.1.0", program: "cmd/postrider", platforms: []platform{here, foreign}, dist: filepath.Join(root, "dist"), packer: "internal/pack"}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}

	tags := strings.Fields(gitIn(t, root, "tag", "--list"))
	if want := []string{"cmd/postrider/v0.1.0", "internal/lab/v0.1.0", "store/pgstore/v0.1.0", "v0.1.0"}; !slices.Equal(tags, want) {
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

	var want strings.Builder
	for _, target := range r.platforms {
		name := target.binary("postrider", "v0.1.0")
		b, err := os.ReadFile(filepath.Join(r.dist, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(b), name)
		if err := target.made(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	sums, err := os.ReadFile(filepath.Join(r.dist, "SHA256SUMS"))
	if err != nil || string(sums) != want.String() {
		t.Errorf("SHA256SUMS = %q, %v; want %q", sums, err, want.String())
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(r.dist, here.binary("postrider", "v0.1.0"))).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "outbox outbox v0.1.0" {
		t.Errorf("the program says %q, %v", out, err)
	}

	packed, err := os.ReadFile(filepath.Join(r.dist, "packed"))
	if want := "-version v0.1.0 -commit " + before + " -time " + gitIn(t, root, "log", "-1", "--format=%ct"); err != nil || string(packed) != want {
		t.Errorf("packages are made with %q, %v; want %q", packed, err, want)
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

func TestForeignPlatforms(t *testing.T) {
	if got, want := len(foreign(true)), len(platforms())-1; got != want {
		t.Errorf("all: %d platforms, want %d", got, want)
	}
	built := map[string]bool{runtime.GOOS: true, runtime.GOARCH: true}
	for _, p := range foreign(false) {
		built[p.os], built[p.arch] = true, true
	}
	for _, p := range platforms() {
		if !built[p.os] || !built[p.arch] {
			t.Errorf("nothing is built for %s or for %s", p.os, p.arch)
		}
	}
}
