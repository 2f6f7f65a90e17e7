//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// platform is what a binary is built for.
type platform struct{ os, arch string }

func (t platform) String() string { return t.os + "/" + t.arch }

func (t platform) binary(name, version string) string {
	file := name + "_" + version + "_" + t.os + "_" + t.arch
	if t.os == "windows" {
		file += ".exe"
	}
	return file
}

// made reports whether a program was built for the platform.
func (t platform) made(program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("read the build info: %w", err)
	}
	var of platform
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			of.os = s.Value
		case "GOARCH":
			of.arch = s.Value
		}
	}
	if of != t {
		return fmt.Errorf("built for %s, want %s", of, t)
	}
	return nil
}

func platforms() []platform {
	var all []platform
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			all = append(all, platform{system, arch})
		}
	}
	return all
}

// foreign returns platforms other than this machine's: all of a release, or the most
// used ones, so that every system and both architectures are built for somewhere.
func foreign(all bool) []platform {
	from := []platform{{"windows", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}}
	if all {
		from = platforms()
	}
	here := platform{runtime.GOOS, runtime.GOARCH}
	seen := map[string]bool{here.os: true, here.arch: true}
	var some []platform
	for _, p := range from {
		if p != here && (all || !seen[p.os] || !seen[p.arch]) {
			seen[p.os], seen[p.arch] = true, true
			some = append(some, p)
		}
	}
	return some
}

// A release turns the commit that is checked out into a version: a commit on
// no branch, in which the modules require each other at that version, and one
// tag for each module that users may require. The tree itself keeps v0.0.0.
//
// The tags live in a clone until every check has passed. There the go command
// finds them as it will find the published ones: it asks git for the module's
// address, and git is told to look into the clone.
type release struct {
	root      string // the working tree
	version   string // "v0.1.0"
	program   string // directory of the module that holds the binary
	platforms []platform
	dist      string // where binaries and packages go
	packer    string // directory of the program that makes packages of the binaries; "" for none

	work    string // everything temporary
	clone   string
	goproxy string // for what is not ours
	modules []module

	published []module // of them, those that users require
}

var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// run makes the release and prints how to publish it. Nothing outside of dist
// changes before the tags are made, and those are made last.
func (r *release) run(ctx context.Context) error {
	if !semver.MatchString(r.version) {
		return fmt.Errorf("release: version %q is not like v0.1.0", r.version)
	}
	if err := r.refuse(ctx); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer removeAll(work)
	r.work, r.clone = work, filepath.Join(work, "clone")
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"write requires", r.require},
		{"build as a stranger", r.strangers},
		{"build binaries twice", r.binaries},
		{"make packages", r.packages},
		{"make tags", r.tags},
	} {
		fmt.Printf("release %s: %s\n", r.version, step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("release: %s: %w", step.what, err)
		}
	}
	return nil
}

// refuse ends a release that would not be what is in the history, or that was
// made before.
func (r *release) refuse(ctx context.Context) error {
	changed, err := r.git(ctx, r.root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("release: uncommitted changes: commit or stash them:\n%s", changed)
	}
	tag, err := r.git(ctx, r.root, "tag", "--list", r.version, "*/"+r.version)
	if err != nil {
		return err
	}
	if tag != "" {
		return fmt.Errorf("release: %s has tags already: choose another version, or delete them with git tag -d:\n%s", r.version, tag)
	}
	return nil
}

// prepare clones the commit and tells git to find our modules in the clone.
func (r *release) prepare(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOPROXY", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("release: go env: %w", err)
	}
	env := strings.Split(strings.TrimSpace(string(out)), "\n")
	r.goproxy = "file://" + filepath.Join(env[1], "cache", "download") + "," + env[0]
	config := "[user]\n\tname = Postrider\n\temail = release@postrider.invalid\n" +
		"[url \"file://" + r.clone + "\"]\n\tinsteadOf = https://" + prefix + "\n" +
		"[safe]\n\tdirectory = *\n"
	if err := os.WriteFile(r.gitConfig(), []byte(config), 0o644); err != nil {
		return err
	}
	if _, err := r.git(ctx, r.root, "clone", "--quiet", "--no-hardlinks", ".", r.clone); err != nil {
		return err
	}
	if r.modules, err = findModules(r.clone); err != nil {
		return err
	}
	if r.modules, err = inOrder(r.modules); err != nil {
		return err
	}
	return r.publish()
}

// require writes the version into every go.mod and go.work. A module's sums
// name those it requires, so each is tagged before the next is tidied, and all
// are tagged again on the last commit, where their files are the same.
func (r *release) require(ctx context.Context) error {
	for _, m := range r.modules {
		if err := replaceIn(filepath.Join(m.dir, "go.mod"), r.version); err != nil {
			return err
		}
	}
	if err := replaceIn(filepath.Join(r.clone, "go.work"), r.version); err != nil {
		return err
	}
	if err := r.commit(ctx); err != nil {
		return err
	}
	for _, m := range r.modules {
		if err := command(ctx, m.dir, r.env("-modcacherw"), "go", "mod", "tidy"); err != nil {
			return err
		}
		if err := r.commit(ctx); err != nil {
			return err
		}
		if err := r.tag(ctx, r.clone, m); err != nil {
			return err
		}
	}
	for _, m := range r.modules {
		if err := r.tag(ctx, r.clone, m); err != nil {
			return err
		}
	}
	return nil
}

// commit keeps one commit above the cloned one.
func (r *release) commit(ctx context.Context) error {
	if _, err := r.git(ctx, r.clone, "add", "--all"); err != nil {
		return err
	}
	args := []string{"commit", "--quiet", "--allow-empty", "--message", "release " + r.version}
	head, err := r.git(ctx, r.clone, "log", "-1", "--format=%s")
	if err != nil {
		return err
	}
	if head == "release "+r.version {
		args = append(args, "--amend")
	}
	_, err = r.git(ctx, r.clone, args...)
	return err
}

// strangers builds every published module from an application outside of the
// tree, then one application that uses all of them.
func (r *release) strangers(ctx context.Context) error {
	var all strings.Builder
	for _, m := range r.published {
		dir, err := os.MkdirTemp(r.work, "stranger")
		if err != nil {
			return err
		}
		require := "require " + m.path + " " + r.version + "\n"
		all.WriteString(require)
		if err := r.buildApplication(ctx, dir, m.goLine, require, m.path+"/..."); err != nil {
			return err
		}
		fmt.Printf("ok   %s@%s\n", m.path, r.version)
	}
	dir, err := os.MkdirTemp(r.work, "stranger")
	if err != nil {
		return err
	}
	var patterns []string
	newest := ""
	for _, m := range r.published {
		patterns = append(patterns, m.path+"/...")
		newest = max(newest, m.goLine)
	}
	return r.buildApplication(ctx, dir, newest, all.String(), patterns...)
}

func (r *release) buildApplication(ctx context.Context, dir, goLine, require string, patterns ...string) error {
	goMod := "module stranger\n\ngo " + goLine + "\n\n" + require
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(goMod), 0o644); err != nil {
		return err
	}
	return command(ctx, dir, r.env("-mod=mod", "-modcacherw", "-trimpath"), append([]string{"go", "build"}, patterns...)...)
}

// binaries installs the program for each platform as "go install" does for a
// user, twice with caches of their own, and keeps the files if they are equal.
func (r *release) binaries(ctx context.Context) error {
	if err := os.RemoveAll(r.dist); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dist, 0o755); err != nil {
		return err
	}
	var sums strings.Builder
	for _, target := range r.platforms {
		first, err := r.install(ctx, target, "first")
		if err != nil {
			return err
		}
		second, err := r.install(ctx, target, "second")
		if err != nil {
			return err
		}
		if !bytes.Equal(first, second) {
			return fmt.Errorf("%s: two builds differ", target)
		}
		name := target.binary(filepath.Base(r.program), r.version)
		if err := os.WriteFile(filepath.Join(r.dist, name), first, 0o755); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(first), name)
		fmt.Printf("ok   %s, %.1f MiB\n", name, float64(len(first))/(1<<20))
	}
	return os.WriteFile(filepath.Join(r.dist, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

func (r *release) install(ctx context.Context, target platform, try string) ([]byte, error) {
	gopath := filepath.Join(r.work, try)
	env := append(r.env("-modcacherw", "-trimpath"), "GOPATH="+gopath, "GOBIN=", "GOOS="+target.os, "GOARCH="+target.arch, "CGO_ENABLED=0")
	if try != "first" {
		env = append(env, "GOCACHE="+filepath.Join(gopath, "cache"))
	}
	path := prefix + "/" + r.program
	if err := command(ctx, r.work, env, "go", "install", "-ldflags=-s -w", path+"@"+r.version); err != nil {
		return nil, err
	}
	file := filepath.Base(r.program)
	if target.os == "windows" {
		file += ".exe"
	}
	dir := filepath.Join(gopath, "bin")
	if (target != platform{runtime.GOOS, runtime.GOARCH}) { // a foreign platform has a directory of its own
		dir = filepath.Join(dir, target.os+"_"+target.arch)
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("%s: go install left no program: %w", target, err)
	}
	if err := target.made(b); err != nil {
		return nil, fmt.Errorf("%s: %w", target, err)
	}
	return b, nil
}

// packages makes packages of the binaries. They name the commit that is checked out and its time, so
// that a second release of that commit makes the same bytes.
func (r *release) packages(ctx context.Context) error {
	if r.packer == "" {
		return nil
	}
	head, err := r.git(ctx, r.root, "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(head, " ")
	env := append(os.Environ(), "GOFLAGS=-trimpath")
	return command(ctx, filepath.Join(r.root, r.packer), env, "go", "run", ".",
		"-version", r.version, "-commit", commit, "-time", seconds, "-dist", r.dist, "-root", r.root)
}

// tags brings the commit and its tags into the working tree's repository.
func (r *release) tags(ctx context.Context) error {
	args := []string{"fetch", "--quiet", "--no-tags", r.clone}
	push := []string{"git", "push", "origin"}
	for _, m := range r.published {
		ref := "refs/tags/" + r.tagOf(m)
		args = append(args, ref+":"+ref)
		push = append(push, r.tagOf(m))
	}
	if _, err := r.git(ctx, r.root, args...); err != nil {
		return err
	}
	fmt.Printf("\nFiles:   %s\nPublish: %s\n", r.dist, strings.Join(push, " "))
	return nil
}

// publish finds the modules that users require, directly or through another one, in
// the order of their needs. What tests and measures is not among them by itself.
func (r *release) publish() error {
	wanted := map[string]bool{}
	for _, m := range slices.Backward(r.modules) { // a module comes behind those that it requires
		dir := r.dirOf(m)
		if !wanted[m.path] && (dir == "bench" || dir == "proof" || strings.HasPrefix(dir, "internal/")) {
			continue
		}
		r.published = append(r.published, m)
		needs, err := ourRequires(m)
		if err != nil {
			return err
		}
		for _, path := range needs {
			wanted[path] = true
		}
	}
	slices.Reverse(r.published)
	return nil
}

func (r *release) dirOf(m module) string {
	return strings.TrimPrefix(strings.TrimPrefix(m.path, prefix), "/")
}

// tagOf is the tag under which the go command looks for the module.
func (r *release) tagOf(m module) string {
	if dir := r.dirOf(m); dir != "" {
		return dir + "/" + r.version
	}
	return r.version
}

func (r *release) tag(ctx context.Context, dir string, m module) error {
	_, err := r.git(ctx, dir, "tag", "--force", r.tagOf(m))
	return err
}

func (r *release) gitConfig() string { return filepath.Join(r.work, "gitconfig") }

// env is a user's environment, in which our modules come from git.
func (r *release) env(flags ...string) []string {
	return append(os.Environ(),
		"GOWORK=off",
		"GOMODCACHE="+filepath.Join(r.work, "mod"),
		"GOPROXY="+r.goproxy,
		"GONOPROXY="+prefix,
		"GONOSUMDB="+prefix,
		"GOFLAGS="+strings.Join(flags, " "),
		"GIT_CONFIG_GLOBAL="+r.gitConfig(),
		"GIT_ALLOW_PROTOCOL=file",
	)
}

// git runs git and returns what it prints, trimmed.
func (r *release) git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = os.Environ()
	if r.work != "" {
		cmd.Env = append(cmd.Env, "GIT_CONFIG_GLOBAL="+r.gitConfig())
	}
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(problem.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// inOrder sorts modules so that each comes after those of ours it requires.
func inOrder(modules []module) ([]module, error) {
	var sorted []module
	placed := map[string]bool{}
	for len(sorted) < len(modules) {
		before := len(sorted)
		for _, m := range modules {
			needs, err := ourRequires(m)
			if err != nil {
				return nil, err
			}
			missing := func(path string) bool { return !placed[path] }
			if placed[m.path] || slices.ContainsFunc(needs, missing) {
				continue
			}
			placed[m.path] = true
			sorted = append(sorted, m)
		}
		if len(sorted) == before {
			return nil, errors.New("modules require each other in a circle, or require a module outside of the tree")
		}
	}
	return sorted, nil
}

// ourRequires are the modules of ours that a go.mod names.
func ourRequires(m module) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	var paths []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) >= 2 && f[1] == version && (f[0] == prefix || strings.HasPrefix(f[0], prefix+"/")) {
			paths = append(paths, f[0])
		}
	}
	return paths, nil
}

// replaceIn puts the version in the place of the tree's own, behind our paths.
func replaceIn(name, to string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	ours := regexp.MustCompile(`(` + regexp.QuoteMeta(prefix) + `\S*) ` + regexp.QuoteMeta(version) + `\b`)
	return os.WriteFile(name, ours.ReplaceAll(b, []byte("${1} "+to)), 0o644)
}

// removeAll removes a directory with a module cache in it.
func removeAll(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, "relproxy: remove temporary files:", err)
	}
}
