//go:build unix

// Command relproxy serves the modules of the working tree as version v0.0.0 to
// the go command, through a file:// module proxy, so that what needs released
// modules works before anything is released.
//
//	relproxy tidy            go mod tidy in every module; copies LICENSE
//	relproxy stranger        checks and builds every module as an outsider would
//	relproxy in DIR CMD...   runs a command in a module, for example
//	                         relproxy in store/pgstore go get github.com/jackc/pgx/v5
//	relproxy release VERSION makes binaries, packages and tags of a version, for example v0.1.0
//	relproxy cross           builds program and libraries for other systems and
//	                         architectures, each once; for every platform of a
//	                         release if POSTRIDER_MATRIX is set
//
// Module downloads go to a module cache of its own, because a v0.0.0 that
// changes all the time must not enter yours.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// version is the version every module of the working tree is served as.
const version = "v0.0.0"

const prefix = "github.com/postrider/postrider"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "relproxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command; want tidy, stranger [DIR...], in DIR CMD, release VERSION, or cross")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	if args[0] == "release" && len(args) == 2 {
		r := &release{root: root, version: args[1], program: "cmd/postrider", platforms: platforms(), dist: filepath.Join(root, "dist"), packer: "internal/release"}
		return r.run(ctx)
	}
	if args[0] == "cross" && len(args) == 1 {
		return cross(ctx, root, "cmd/postrider", foreign(os.Getenv("POSTRIDER_MATRIX") != ""))
	}
	p, err := open(ctx, root)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case args[0] == "tidy" && len(args) == 1:
		return p.tidy(ctx)
	case args[0] == "stranger":
		return p.stranger(ctx, args[1:])
	case args[0] == "in" && len(args) > 2:
		return p.in(ctx, args[1], args[2:])
	}
	return fmt.Errorf("unknown command %q", args)
}

// findRoot returns the directory of go.work, at or above the current one.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.work here or above")
		}
		dir = filepath.Dir(dir)
	}
}

// proxy is a module proxy in a directory, with a module cache beside it.
type proxy struct {
	root    string // of the working tree
	dir     string // what file:// points to
	mod     string // GOMODCACHE
	ambient string // the user's GOPROXY, with the module cache in front
	tidied  string // the user's GOPROXY alone
	lock    *os.File
}

// open waits for its turn: the private module cache serves one run at a time.
func open(ctx context.Context, root string) (*proxy, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(cache, "postrider", "relproxy")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(base, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		lock.Close()
		return nil, err
	}
	p := &proxy{root: root, dir: filepath.Join(base, "proxy"), mod: filepath.Join(base, "mod"), lock: lock}
	out, err := exec.CommandContext(ctx, "go", "env", "GOPROXY", "GOMODCACHE").Output()
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(env) != 2 {
		lock.Close()
		return nil, fmt.Errorf("go env: %q", out)
	}
	p.tidied = env[0]
	p.ambient = "file://" + filepath.Join(env[1], "cache", "download") + "," + env[0]
	return p, nil
}

func (p *proxy) close() { p.lock.Close() }

// env is the environment in which the go command sees our modules.
func (p *proxy) env(upstream string, flags ...string) []string {
	return append(os.Environ(),
		"GOWORK=off",
		"GOMODCACHE="+p.mod,
		"GOPROXY=file://"+p.dir+","+upstream,
		"GONOPROXY=none",
		"GONOSUMDB="+prefix,
		"GODEBUG=goindex=0", // the index of a module is kept for ever, our v0.0.0 is not
		"GOFLAGS="+strings.Join(append(flags, "-modcacherw"), " "),
	)
}

// command runs a program in dir and shows what it says.
func command(ctx context.Context, dir string, env []string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s in %s: %w", strings.Join(argv, " "), dir, err)
	}
	return nil
}
