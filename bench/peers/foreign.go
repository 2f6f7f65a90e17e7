package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// foreigner is a peer whose module not every proxy has. Its program is built apart, so
// that its absence costs its row of the table only.
type foreigner struct {
	folder  string // in foreign/
	module  string
	version string
	env     string // names a checkout of the module, in place of a proxy
}

var foreigners = map[string]foreigner{
	nameCDC:    {"gopqcdc", "github.com/Trendyol/go-pq-cdc", "v1.11.12", "POSTRIDER_PEER_GO_PQ_CDC"},
	nameCanal:  {"canal", "github.com/go-mysql-org/go-mysql", "v1.16.0", "POSTRIDER_PEER_GO_MYSQL"},
	"pgoutbox": {"pgoutbox", "github.com/hatchet-dev/pgoutbox", "v0.4.0", "POSTRIDER_PEER_PGOUTBOX"},
}

// build builds the program in a folder of its own, where go mod tidy completes the
// requirements, and returns its path.
func (f foreigner) build(ctx context.Context, module, dir string) (path string, err error) {
	work := filepath.Join(dir, "src-"+f.folder)
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	source, err := os.ReadFile(filepath.Join(module, "foreign", f.folder, "main.go"))
	if err != nil {
		return "", err
	}
	_, program, _ := strings.Cut(string(source), "//go:build ignore\n")
	goMod := fmt.Sprintf("module peer\n\ngo 1.26.0\n\nrequire (\n\t%s %s\n\tgithub.com/jackc/pgx/v5 v5.12.0\n\tgithub.com/twmb/franz-go v1.22.2\n)\n", f.module, f.version)
	for name, text := range map[string]string{"main.go": program, "go.mod": goMod} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	path = filepath.Join(dir, f.folder)
	commands := [][]string{{"mod", "tidy"}, {"build", "-o", path, "."}}
	if checkout := os.Getenv(f.env); checkout != "" {
		commands = append([][]string{{"mod", "edit", "-replace", f.module + "=" + checkout}}, commands...)
	}
	for _, args := range commands {
		if err := goRun(ctx, work, []string{"GOWORK=off", "GOFLAGS=-mod=mod"}, args...); err != nil {
			return "", fmt.Errorf("module %s is not available (%s names a checkout of it): %w", f.module, f.env, reason(err))
		}
	}
	return path, nil
}

// reason keeps what a go command says at its end, without its progress.
func reason(err error) error {
	var kept []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "go: downloading ") && !strings.HasPrefix(line, "go: finding ") {
			kept = append(kept, line)
		}
	}
	return fmt.Errorf("%.400s", strings.Join(kept, " "))
}

// foreign starts a peer that is built apart.
func foreign(name string) func(context.Context, *trial) (*process, error) {
	return func(ctx context.Context, t *trial) (*process, error) {
		return t.launch(ctx, t.foreign[name], t.database, t.addr, t.topic, slot(t.topic))
	}
}
