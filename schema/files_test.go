package schema_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
)

func TestReadFiles(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files, err := schema.ReadFiles(fstest.MapFS{
		"order.placed/010.json": file("ten"), "order.placed/2.json": file("two"), "order.paid/001.avsc": file("avro"),
		"order.shipped/001.proto": file("proto"), "README.md": file(""), "_shared/money.json": file(""),
		".git/config": file(""), "order.paid/.DS_Store": file(""),
	})
	var got []string
	for _, f := range files {
		got = append(got, fmt.Sprintf("%s %d %s %s %s", f.Subject, f.Version, f.Format, f.Path, f.Text))
	}
	want := "order.paid 1 avsc order.paid/001.avsc avro|order.placed 2 json order.placed/2.json two|" +
		"order.placed 10 json order.placed/010.json ten|order.shipped 1 proto order.shipped/001.proto proto"
	if err != nil || strings.Join(got, "|") != want {
		t.Errorf("%q, %v", got, err)
	}
	_, err = schema.ReadFiles(fstest.MapFS{
		"a/first.json": file(""), "a/000.json": file(""), "a/001.yaml": file(""), "a/002.json": file(""), "a/2.avsc": file(""),
		"a/sub/001.json": file(""), "b/001.json": file(strings.Repeat(" ", 1<<20+1)),
	})
	var layout *schema.LayoutError
	if !errors.As(err, &layout) {
		t.Fatal(err)
	}
	for _, part := range []string{
		"schema: a/first.json: the name must be a version", "a/000.json: the name must be", "a/001.yaml: the ending must be json",
		"a/2.avsc: a/002.json has the same version", "a/sub: a subject has no folders", "b/001.json: it has 1048577 bytes, the limit is 1048576",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\nwant %s", err, part)
		}
	}
	invalid := &schema.InvalidError{Subject: "a", Version: 2, Reason: "no"}
	if !errors.Is(invalid, postrider.ErrInvalid) || invalid.ErrorCode() != "SCHEMA_INVALID" || invalid.Error() != "payload does not match version 2 of the schema a: no" {
		t.Error(invalid)
	}
}

// A ConfigMap mounts each subject as a link to a folder in ..data, which is a link too.
func TestReadFilesFollowsLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege")
	}
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "..2026_01_01", "order.placed"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "..2026_01_01", "order.placed", "001.json"), []byte("one"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "README.txt"), nil, 0o600))
	must(os.Symlink("..2026_01_01", filepath.Join(dir, "..data")))
	must(os.Symlink(filepath.Join("..data", "order.placed"), filepath.Join(dir, "order.placed")))
	must(os.Symlink("README.txt", filepath.Join(dir, "README.md")))
	must(os.Mkdir(filepath.Join(dir, "order.paid"), 0o700))
	must(os.Symlink(filepath.Join("..", "..data", "order.placed", "001.json"), filepath.Join(dir, "order.paid", "002.json")))
	files, err := schema.ReadFiles(os.DirFS(dir))
	var got []string
	for _, f := range files {
		got = append(got, fmt.Sprintf("%s %s", f.Path, f.Text))
	}
	if want := "order.paid/002.json one|order.placed/001.json one"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("%q, want %q; error %v", got, want, err)
	}

	large := filepath.Join(dir, "large")
	must(os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	must(os.Symlink(large, filepath.Join(dir, "order.paid", "003.json")))
	must(os.Symlink("gone", filepath.Join(dir, "order.paid", "004.json")))
	must(os.Symlink(dir, filepath.Join(dir, "order.paid", "005.json")))
	must(os.Symlink(filepath.Join("..data", "order.gone"), filepath.Join(dir, "order.gone")))
	_, err = schema.ReadFiles(os.DirFS(dir))
	for _, part := range []string{
		"schema: order.gone: the link cannot be followed", "order.paid/003.json: it has 1048577 bytes",
		"order.paid/004.json: the link cannot be followed", "order.paid/005.json: a subject has no folders",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v\nwant %s", err, part)
		}
	}
}
