//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The archive of this machine's binary has it with its manual pages and completions, and the
// pages name the commands of that binary.
func TestArchive(t *testing.T) {
	v := released(t, "v0.1.0")
	name := "postrider_v0.1.0_" + runtime.GOOS + "_" + runtime.GOARCH
	dir := t.TempDir()
	command(t, dir, "tar", "--extract", "--gzip", "--file", v.path(name+".tar.gz"))
	listed := command(t, filepath.Join(dir, name), "find", ".", "-type", "f")
	for _, want := range []string{"./postrider\n", "./LICENSE\n", "./README.md\n", "./man/postrider.1\n", "./man/postrider-relay.1\n", "./completions/postrider.bash\n", "./completions/_postrider\n", "./completions/postrider.fish\n"} {
		if !strings.Contains(listed, want) {
			t.Errorf("%s is missing:\n%s", want, listed)
		}
	}
	readme, err := os.ReadFile(filepath.Join(dir, name, "README.md"))
	if err != nil || !strings.Contains(string(readme), "](https://github.com/postrider/postrider/blob/v0.1.0/docs/brokers.md#routes-and-wire-formats)") || !strings.Contains(string(readme), "](#brokers)") {
		t.Errorf("the links of README.md must lead to its sections and to the source: %v", err)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(string(readme), -1) {
		if !strings.HasPrefix(m[1], "#") && !strings.HasPrefix(m[1], "https://") {
			t.Errorf("README.md: %s is not in the archive", m[1])
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, name, "man", "postrider.1"))
	if err != nil || !strings.Contains(string(page), `postrider\-relay`) {
		t.Errorf("the first manual page: %v\n%s", err, page)
	}
	if got := command(t, dir, filepath.Join(dir, name, "postrider"), "version"); !strings.Contains(got, "platform") {
		t.Errorf("the program of the archive: %s", got)
	}
	command(t, dir, "bash", "-n", filepath.Join(name, "completions", "postrider.bash"))
}

// A zip has the same files, whatever the machine that makes it.
func TestZip(t *testing.T) {
	v := &version{name: "v0.1.0", time: time.Unix(1_700_000_000, 0), dist: t.TempDir(), folder: root}
	p := program{file: "postrider_v0.1.0_windows_amd64.exe", os: "windows", arch: "amd64"}
	if err := os.WriteFile(v.path(p.file), []byte("MZ"), 0o600); err != nil {
		t.Fatal(err)
	}
	var made [2]string
	for i := range made {
		if err := v.writeArchive(p, helps{"man/postrider.1": []byte("x")}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(v.path("postrider_v0.1.0_windows_amd64.zip"))
		if err != nil {
			t.Fatal(err)
		}
		made[i] = string(data)
	}
	for _, want := range []string{"postrider_v0.1.0_windows_amd64/postrider.exe", "postrider_v0.1.0_windows_amd64/man/postrider.1"} {
		if made[0] != made[1] || !strings.Contains(made[0], want) {
			t.Errorf("two archives are equal: %v; want the file %s", made[0] == made[1], want)
		}
	}
}
