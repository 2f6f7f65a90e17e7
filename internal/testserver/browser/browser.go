// Package browser finds the browser that tests drive pages with, and its driver.
package browser

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/postrider/postrider/internal/testserver"
)

// Version is that of playwright-core, the driver that "make servers" installs beside axe-core.
const Version = "1.65.1"

// Browser is what a test drives pages with.
type Browser struct {
	node, modules, chromium string
}

// Find returns the installed browser with its driver. The error names what is missing and the
// command that installs it.
func Find() (b Browser, err error) {
	if b.node, _, err = testserver.Node(); err != nil {
		return b, err
	}
	if b.chromium, err = exec.LookPath("chromium"); err != nil {
		return b, &testserver.MissingError{Server: "Chromium", Fix: "apt-get install chromium"}
	}
	cache, err := testserver.CacheDir()
	if err != nil {
		return b, err
	}
	b.modules = filepath.Join(cache, "browser-"+Version, "node_modules")
	for _, file := range []string{"playwright-core/package.json", "axe-core/axe.min.js"} {
		if _, err := os.Stat(filepath.Join(b.modules, filepath.FromSlash(file))); err != nil {
			return b, &testserver.MissingError{Server: "playwright-core " + Version + " and axe-core", Fix: "make servers"}
		}
	}
	return b, nil
}

// Command returns a command that runs a script of node. The script finds what it drives the
// browser with in the variables MODULES and CHROMIUM.
func (b Browser) Command(script string) *exec.Cmd {
	cmd := exec.Command(b.node, script)
	cmd.Env = append(cmd.Environ(), "MODULES="+b.modules, "CHROMIUM="+b.chromium)
	return cmd
}
