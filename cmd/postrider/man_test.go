package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/man"
)

// Every command that a person is shown has a manual page with each of its flags, and roff has
// nothing to complain about.
func TestManualPages(t *testing.T) {
	pages := man.Pages((&app{}).root())
	root, flags, commands := (&app{}).root(), 0, 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		commands++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		text := string(pages[name])
		for _, want := range []string{".TH ", ".SH NAME\n", ".SH SYNOPSIS\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q", name, want)
			}
		}
		listed := func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			if flags++; !strings.Contains(text, `\fB\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)+`\fR`) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		}
		for p := c.Parent(); p != nil && p.HasParent(); p = p.Parent() {
			p.PersistentFlags().VisitAll(listed)
		}
		c.LocalNonPersistentFlags().VisitAll(listed)
		c.PersistentFlags().VisitAll(listed)
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
				visit(sub)
			}
		}
	}
	visit(root)
	if commands != len(pages) || flags < 100 {
		t.Errorf("%d commands with %d flags have %d pages", commands, flags, len(pages))
	}
	dir := filepath.Join(t.TempDir(), "man1")
	mustCLI(t, "", "man", dir)
	for name, text := range pages {
		written, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(written) != string(text) {
			t.Errorf("%s is not what was written: %v", name, err)
		}
	}
	if got := cli(t, nil, "", "man"); got.code != 2 {
		t.Errorf("without a folder: exit %d, %s", got.code, got.err)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff is not installed: the pages were not formatted")
		return
	}
	args := []string{"-man", "-Tutf8", "-ww", "-Wbreak", "-z"} // a URL may be longer than a line
	for name := range pages {
		args = append(args, filepath.Join(dir, name))
	}
	if out, err := exec.Command(groff, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
