//go:build unix

package main

import (
	"embed"
	"io"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

//go:embed files
var packaged embed.FS

const (
	project     = "https://github.com/postrider/postrider"
	description = "Transactional outbox: carries messages from a database's transactions to a broker"
)

// writePackages writes the deb and the rpm of a binary.
func (v *version) writePackages(p program, h helps) error {
	dir, err := os.MkdirTemp("", "package")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, packaged); err != nil {
		return err
	}
	from := func(name string) string { return filepath.Join(dir, "files", name) }
	var helping files.Contents
	for _, name := range h.names() {
		to, data, err := h.installed(name)
		if err != nil {
			return err
		}
		source := filepath.Join(dir, filepath.Base(to))
		if err := os.WriteFile(source, data, 0o600); err != nil {
			return err
		}
		helping = append(helping, v.file(source, to, 0o644))
	}
	for _, format := range []struct {
		packager nfpm.Packager
		adapt    func(*nfpm.Info)
	}{
		{deb.Default, func(i *nfpm.Info) {
			i.Section, i.Priority = "net", "optional"
			i.Deb.Predepends = []string{"passwd"} // preinst makes the user
		}},
		{rpm.DefaultRPM, func(i *nfpm.Info) {
			i.Depends = []string{"/usr/sbin/useradd"}
			i.RPM.BuildHost = "postrider.invalid" // the name of this machine is nobody's business
			// rpm removes the folders that a package names, where dpkg removes every empty one.
			for _, name := range []string{"/usr/share/zsh", "/usr/share/zsh/site-functions", "/usr/share/fish", "/usr/share/fish/vendor_completions.d"} {
				i.Contents = append(i.Contents, v.directory(name, "root", 0o755))
			}
		}},
	} {
		info := v.info(p, from)
		info.Contents = append(info.Contents, helping...)
		format.adapt(info)
		info = nfpm.WithDefaults(info)
		name := format.packager.ConventionalFileName(info)
		if err := create(v.path(name), func(w io.Writer) error { return format.packager.Package(info, w) }); err != nil {
			return err
		}
	}
	return nil
}

// info is what both packages have in common.
func (v *version) info(p program, from func(string) string) *nfpm.Info {
	const everybody, program, group = 0o644, 0o755, 0o640
	file := v.file
	settings := file(from("postrider.yml"), "/etc/postrider/postrider.yml", group)
	settings.Type, settings.FileInfo.Group = files.TypeConfigNoReplace, "postrider"
	return &nfpm.Info{
		Name: "postrider", Version: v.name, Release: "1", Arch: p.arch, Platform: "linux", MTime: v.time,
		Maintainer: "The Postrider authors <release@postrider.invalid>", Vendor: "Postrider", Homepage: project, License: "Apache-2.0", Description: description,
		Overridables: nfpm.Overridables{
			Contents: files.Contents{
				file(v.path(p.file), "/usr/bin/postrider", program),
				file(from("postrider.service"), "/usr/lib/systemd/system/postrider.service", everybody),
				file(from("postrider@.service"), "/usr/lib/systemd/system/postrider@.service", everybody),
				file(filepath.Join(v.folder, "LICENSE"), "/usr/share/doc/postrider/copyright", everybody),
				v.directory("/etc/postrider", "postrider", 0o750), v.directory("/usr/share/doc/postrider", "root", 0o755), settings,
			},
			Scripts: nfpm.Scripts{
				PreInstall: from("preinstall.sh"), PostInstall: from("postinstall.sh"),
				PreRemove: from("preremove.sh"), PostRemove: from("postremove.sh"),
			},
		},
	}
}

// file is one of root's in a package.
func (v *version) file(source, to string, mode os.FileMode) *files.Content {
	return &files.Content{Source: source, Destination: to, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: v.time}}
}

// directory is one of root's and a group's in a package.
func (v *version) directory(name, group string, mode os.FileMode) *files.Content {
	return &files.Content{Destination: name, Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Owner: "root", Group: group, Mode: mode, MTime: v.time}}
}

// create writes a file and reports the error of its end too.
func create(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close() // the first error counts
		return err
	}
	return f.Close()
}
