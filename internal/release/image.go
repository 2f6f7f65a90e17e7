//go:build unix

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is that of the image: nobody's on any distribution.
const user = 65532

// entry is a file or a folder of the image or of an archive.
type entry struct {
	name string
	mode int64
	dir  bool
	data []byte
}

// writeImage writes the image of all architectures, as a layout and as a tar of it.
func (v *version) writeImage(linux []program) error {
	zones, err := zoneinfo()
	if err != nil {
		return err
	}
	shared, err := v.layer(append([]entry{
		{name: "etc/", mode: 0o755, dir: true},
		{name: "etc/passwd", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\npostrider:x:%d:%d:postrider:/:/sbin/nologin\n", user, user)},
		{name: "etc/group", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:\npostrider:x:%d:\n", user)},
		{name: "etc/ssl/", mode: 0o755, dir: true},
		{name: "etc/ssl/certs/", mode: 0o755, dir: true},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots()},
		{name: "tmp/", mode: 0o1777, dir: true},
		{name: "usr/", mode: 0o755, dir: true},
		{name: "usr/share/", mode: 0o755, dir: true},
	}, zones...))
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range linux {
		img, err := v.image(p, shared)
		if err != nil {
			return fmt.Errorf("%s: %w", p.arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}},
		})
	}
	dir := v.path("oci")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": v.bare()})
	if err := to.AppendIndex(index, named); err != nil {
		return err
	}
	if err := readable(dir); err != nil {
		return err
	}
	return create(v.path("postrider_"+v.name+"_oci.tar"), func(w io.Writer) error { return v.pack(w, dir) })
}

// image is that of one architecture.
func (v *version) image(p program, shared v1.Layer) (v1.Image, error) {
	binary, err := os.ReadFile(v.path(p.file))
	if err != nil {
		return nil, err
	}
	own, err := v.layer([]entry{{name: "postrider", mode: 0o755, data: binary}})
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, shared, own); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", p.arch, v1.Time{Time: v.time}
	for i := range config.History {
		config.History[i].Created = v1.Time{Time: v.time}
	}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/postrider"},
		Cmd:        []string{"relay"},
		WorkingDir: "/",
		Env:        []string{"PATH=/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/postrider", "health"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 5 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "postrider",
			"org.opencontainers.image.description": description,
			"org.opencontainers.image.source":      project,
			"org.opencontainers.image.version":     v.bare(),
			"org.opencontainers.image.revision":    v.commit,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// layer packs entries as a layer of the image.
func (v *version) layer(entries []entry) (v1.Layer, error) {
	packed, err := v.tar(entries)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// tar packs entries with the time of the commit and root as their owner.
func (v *version) tar(entries []entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		kind := byte(tar.TypeReg)
		if e.dir {
			kind = tar.TypeDir
		}
		h := &tar.Header{Typeflag: kind, Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: v.time, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

// readable gives the layout's files the mode of everything else in the folder.
func readable(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(name, 0o644)
	})
}

// pack writes a folder's files as a tar, in order.
func (v *version) pack(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(inside), Mode: 0o644, Size: int64(len(data)), ModTime: v.time, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// roots are Mozilla's certificate authorities as PEM. A file cannot express that a root is trusted up to a
// date only, so a root with such a constraint is left out.
func roots() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return text.Bytes()
}

// zoneinfo returns the toolchain's time zones as files. For the variable TZ a program of Go reads files only:
// it ignores ZONEINFO, and archives.
func zoneinfo() ([]entry, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	packed, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	const top = "usr/share/zoneinfo/"
	entries, made := []entry{{name: top, mode: 0o755, dir: true}}, map[string]bool{}
	for _, f := range packed.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		for i, c := range f.Name {
			if folder := f.Name[:i] + "/"; c == '/' && !made[folder] {
				made[folder] = true
				entries = append(entries, entry{name: top + folder, mode: 0o755, dir: true})
			}
		}
		data, err := fs.ReadFile(packed, f.Name)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: top + f.Name, mode: 0o644, data: data})
	}
	return entries, nil
}
