//go:build unix

package main

import (
	"archive/zip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestPublish(t *testing.T) {
	root := tree(t, map[string]string{
		"go.mod":                 "module " + prefix + "\n\ngo 1.25\n",
		"go.work":                "go 1.25\n",
		"doc.go":                 "package postrider\n",
		"store/x.sql":            "select 1\n",
		"store/pgstore/go.mod":   "module " + prefix + "/store/pgstore\n\ngo 1.25\n",
		"store/pgstore/store.go": "package pgstore\n",
		"tools/lint/go.mod":      "module " + prefix + "/tools/lint\n\ngo 1.26\n",
		".git/config":            "",
	})
	p := &proxy{root: root, dir: filepath.Join(root, ".proxy"), mod: filepath.Join(root, ".mod")}
	modules, err := p.publish()
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) != 2 {
		t.Fatalf("modules = %v, want two", modules)
	}
	for dir, want := range map[string][]string{
		prefix:                    {"doc.go", "go.mod", "store/x.sql"},
		prefix + "/store/pgstore": {"go.mod", "store.go"},
	} {
		z, err := zip.OpenReader(filepath.Join(p.dir, filepath.FromSlash(dir), "@v", version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range z.File {
			got = append(got, f.Name[len(dir+"@"+version+"/"):])
		}
		z.Close()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s holds %v, want %v", dir, got, want)
		}
	}
	copied := t.TempDir()
	if err := p.unpack(modules[1], copied); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(copied, "store.go")); err != nil || string(b) != "package pgstore\n" {
		t.Errorf("unpacked store.go = %q, %v", b, err)
	}
}

func TestSameFile(t *testing.T) {
	root := tree(t, map[string]string{"a/go.sum": "x\n", "b/go.sum": "x\n", "c/go.sum": "y\n", "none/go.mod": ""})
	for other, same := range map[string]bool{"b": true, "c": false, "none": false} {
		err := sameFile(filepath.Join(root, "a", "go.sum"), filepath.Join(root, other, "go.sum"))
		if (err == nil) != same {
			t.Errorf("compared with %s: %v, want the same: %v", other, err, same)
		}
	}
	if err := sameFile(filepath.Join(root, "none", "go.sum"), filepath.Join(root, "none", "go.sum")); err != nil {
		t.Errorf("no go.sum on both sides: %v", err)
	}
}

func TestStripSums(t *testing.T) {
	ours := prefix + " v0.0.0 h1:a=\n" + prefix + "/store v0.0.0/go.mod h1:b=\n"
	other := "github.com/jackc/pgx/v5 v5.12.0 h1:c=\n"
	root := tree(t, map[string]string{"a/go.sum": ours + other, "b/go.sum": ours})
	for _, dir := range []string{"a", "b", "none"} {
		if err := stripSums(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "a", "go.sum")); err != nil || string(b) != other {
		t.Errorf("go.sum = %q, %v; want %q", b, err, other)
	}
	if _, err := os.Stat(filepath.Join(root, "b", "go.sum")); !os.IsNotExist(err) {
		t.Errorf("an empty go.sum stays: %v", err)
	}
}

func TestCopyLicense(t *testing.T) {
	root := tree(t, map[string]string{"LICENSE": "text", "go.mod": "module a\n\ngo 1.25\n", "b/go.mod": "module b\n\ngo 1.25\n"})
	if err := copyLicense(root); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(root, "b", "LICENSE")); err != nil || string(b) != "text" {
		t.Errorf("LICENSE = %q, %v", b, err)
	}
}
