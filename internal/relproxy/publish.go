//go:build unix

package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// module is one go.mod of the working tree.
type module struct {
	path   string
	dir    string
	goLine string // "1.25"
}

// findModules returns the modules of the tree in the order of their
// directories. Tools are not part of it: nobody depends on them.
func findModules(root string) ([]module, error) {
	var modules []module
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (hidden(d.Name()) || path == filepath.Join(root, "tools")) {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Name() != "go.mod" {
			return nil
		}
		m := module{dir: filepath.Dir(path)}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			switch f := strings.Fields(line); {
			case len(f) == 2 && f[0] == "module":
				m.path = f[1]
			case len(f) == 2 && f[0] == "go":
				m.goLine = f[1]
			}
		}
		if m.path == "" || m.goLine == "" {
			return fmt.Errorf("%s: no module or go line", path)
		}
		modules = append(modules, m)
		return nil
	})
	return modules, err
}

// hidden reports whether the go command ignores a directory of that name, or
// no module should hold it.
func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules"
}

// publish writes all modules into the proxy's directory and forgets what the
// private module cache holds of them.
func (p *proxy) publish() ([]module, error) {
	for _, old := range []string{
		p.dir,
		filepath.Join(p.mod, filepath.FromSlash(filepath.Dir(prefix))),
		filepath.Join(p.mod, "cache", "download", filepath.FromSlash(filepath.Dir(prefix))),
	} {
		if err := os.RemoveAll(old); err != nil {
			return nil, err
		}
	}
	modules, err := findModules(p.root)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		if err := p.publishOne(m); err != nil {
			return nil, fmt.Errorf("publish %s: %w", m.path, err)
		}
	}
	return modules, nil
}

func (p *proxy) publishOne(m module) error {
	dir := filepath.Join(p.dir, filepath.FromSlash(m.path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	goMod, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"list":            version + "\n",
		version + ".info": `{"Version":"` + version + `","Time":"2000-01-01T00:00:00Z"}`,
		version + ".mod":  string(goMod),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	if err := addTree(z, m); err != nil {
		return err
	}
	return errors.Join(z.Close(), f.Close())
}

// unpack writes the module's files, as they were published, into dir.
func (p *proxy) unpack(m module, dir string) error {
	z, err := zip.OpenReader(filepath.Join(p.dir, filepath.FromSlash(m.path), "@v", version+".zip"))
	if err != nil {
		return err
	}
	defer z.Close()
	files, err := fs.Sub(z, m.path+"@"+version)
	if err != nil {
		return err
	}
	return os.CopyFS(dir, files)
}

// addTree adds a module's files, without those of the modules below it.
func addTree(z *zip.Writer, m module) error {
	return filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed while we look: an editor's temporary file
		case err != nil:
			return err
		case d.IsDir() && path != m.dir:
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		case !d.Type().IsRegular(), slices.Contains([]string{"go.work", "go.work.sum"}, d.Name()):
			return nil
		}
		rel, err := filepath.Rel(m.dir, path)
		if err != nil {
			return err
		}
		src, err := os.Open(path)
		if err != nil {
			return err
		}
		defer src.Close()
		dst, err := z.Create(m.path + "@" + version + "/" + filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		_, err = io.Copy(dst, src)
		return err
	})
}
