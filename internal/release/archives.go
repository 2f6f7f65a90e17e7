//go:build unix

package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// helps are the manual pages and the completions of shells, by the names that archives give them.
type helps map[string][]byte

// writtenBy lets the binary for this machine write its manual pages and completions.
func (v *version) writtenBy(programs []program) (helps, error) {
	i := slices.IndexFunc(programs, func(p program) bool { return p.os == runtime.GOOS && p.arch == runtime.GOARCH })
	if i < 0 {
		return nil, fmt.Errorf("%s has no binary for %s/%s, which writes the manual pages: build it, or run this on a machine of another kind", v.dist, runtime.GOOS, runtime.GOARCH)
	}
	own, err := filepath.Abs(v.path(programs[i].file))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "man")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(own, args...)
		cmd.Dir, cmd.Env = dir, []string{} // no setting of this machine
		out, err := cmd.Output()
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", programs[i].file, strings.Join(args, " "), err)
		}
		return out, nil
	}
	all := helps{}
	if _, err := run("man", "."); err != nil {
		return nil, err
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		if all["man/"+page.Name()], err = os.ReadFile(filepath.Join(dir, page.Name())); err != nil {
			return nil, err
		}
	}
	for shell, file := range map[string]string{"bash": "postrider.bash", "zsh": "_postrider", "fish": "postrider.fish"} {
		if all["completions/"+file], err = run("completion", shell); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// names are sorted: archives and packages list files in one order.
func (h helps) names() []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// installed is where a package of Linux puts a help, and its bytes there: manual pages are compressed.
func (h helps) installed(name string) (to string, data []byte, err error) {
	switch base := path.Base(name); {
	case strings.HasPrefix(name, "man/"):
		data, err = compressed(h[name])
		return "/usr/share/man/man1/" + base + ".gz", data, err
	case base == "_postrider":
		return "/usr/share/zsh/site-functions/_postrider", h[name], nil
	case base == "postrider.fish":
		return "/usr/share/fish/vendor_completions.d/postrider.fish", h[name], nil
	}
	return "/usr/share/bash-completion/completions/postrider", h[name], nil
}

func compressed(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}

// writeArchive packs a binary with its manual pages, completions, license and first page: a zip
// for Windows, a compressed tar for the others.
func (v *version) writeArchive(p program, h helps) error {
	binary, err := os.ReadFile(v.path(p.file))
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(p.file, ".exe")
	program := "postrider"
	if p.os == "windows" {
		program += ".exe"
	}
	all := []entry{{name: program, mode: 0o755, data: binary}}
	for _, paper := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(filepath.Join(v.folder, paper))
		if err != nil {
			return err
		}
		if paper == "README.md" {
			data = v.linked(data)
		}
		all = append(all, entry{name: paper, mode: 0o644, data: data})
	}
	for _, help := range h.names() {
		all = append(all, entry{name: help, mode: 0o644, data: h[help]})
	}
	for i := range all {
		all[i].name = path.Join(name, all[i].name)
	}
	if p.os == "windows" {
		return create(v.path(name+".zip"), func(w io.Writer) error { return v.zip(w, all) })
	}
	packed, err := v.tar(all)
	if err != nil {
		return err
	}
	packed, err = compressed(packed)
	if err != nil {
		return err
	}
	return os.WriteFile(v.path(name+".tar.gz"), packed, 0o644)
}

// pathLink is a link of Markdown to a file of the tree.
var pathLink = regexp.MustCompile(`\]\(([^)#:]+(?:#[^)]*)?)\)`)

// linked lets a page's links lead to the source of this version: the archive does not have the other files.
func (v *version) linked(page []byte) []byte {
	return pathLink.ReplaceAll(page, []byte("]("+project+"/blob/"+v.name+"/$1)"))
}

func (v *version) zip(to io.Writer, entries []entry) error {
	z := zip.NewWriter(to)
	for _, e := range entries {
		w, err := z.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: v.time})
		if err != nil {
			return err
		}
		if _, err := w.Write(e.data); err != nil {
			return err
		}
	}
	return z.Close()
}
