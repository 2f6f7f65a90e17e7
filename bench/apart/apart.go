// Package apart runs programs below bench that are modules with a workspace of their own.
package apart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Run builds the program in a folder of bench and runs it with args until it ends. When
// ctx ends, the program is asked to end.
func Run(ctx context.Context, folder string, args []string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/postrider/postrider/bench").Output()
	if err != nil {
		return fmt.Errorf("find bench/%s: run this inside of the repository: %w", folder, err)
	}
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, folder)
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir, build.Env = filepath.Join(strings.TrimSpace(string(root)), folder), append(os.Environ(), "GOWORK=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build bench/%s: %w\n%s", folder, err, out)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd.Run()
}
