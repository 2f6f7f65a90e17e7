//go:build unix

// Command release makes the packages of a version from its binaries: archives, deb, rpm, an OCI image, bills
// of materials, the record of the build, and the checksums of everything.
//
// It reads and writes one folder. The same binaries, version, commit and time give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// version is what is released, from one commit.
type version struct {
	name   string // "v0.1.0"
	commit string
	time   time.Time // of the commit: every date in every file
	dist   string    // folder of the binaries and of what is made
	folder string    // LICENSE is there
}

// program is one of the binaries.
type program struct {
	file, os, arch string
}

func main() {
	var v version
	var seconds int64
	flag.StringVar(&v.name, "version", "", "version, such as v0.1.0")
	flag.StringVar(&v.commit, "commit", "", "commit that the binaries were built from")
	flag.Int64Var(&seconds, "time", 0, "time of the commit, in seconds since 1970")
	flag.StringVar(&v.dist, "dist", "dist", "folder with the binaries")
	flag.StringVar(&v.folder, "root", ".", "folder of the repository")
	flag.Parse()
	v.time = time.Unix(seconds, 0).UTC()
	if err := v.make(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// make writes every package. What an earlier run left is overwritten.
func (v *version) make() error {
	if v.name == "" || v.commit == "" || v.time.Unix() <= 0 {
		return errors.New("give -version, -commit and -time")
	}
	programs, err := v.programs()
	if err != nil {
		return err
	}
	h, err := v.writtenBy(programs)
	if err != nil {
		return err
	}
	var linux []program
	for _, p := range programs {
		if err := v.writeArchive(p, h); err != nil {
			return fmt.Errorf("archive of %s: %w", p.file, err)
		}
		if err := v.writeBill(p); err != nil {
			return fmt.Errorf("bill of materials of %s: %w", p.file, err)
		}
		if p.os != "linux" {
			continue
		}
		linux = append(linux, p)
		if err := v.writePackages(p, h); err != nil {
			return fmt.Errorf("packages of %s: %w", p.file, err)
		}
	}
	if len(linux) == 0 {
		return fmt.Errorf("%s has no binary for linux: the packages and the image need one", v.dist)
	}
	if err := v.writeImage(linux); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := v.writeProvenance(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	return v.writeSums()
}

// programs finds the binaries by their names, in order.
func (v *version) programs() ([]program, error) {
	files, err := os.ReadDir(v.dist)
	if err != nil {
		return nil, err
	}
	binary := regexp.MustCompile(`^postrider_` + regexp.QuoteMeta(v.name) + `_(linux|darwin|windows)_([a-z0-9]+)(\.exe)?$`)
	var found []program
	for _, f := range files {
		if m := binary.FindStringSubmatch(f.Name()); m != nil && f.Type().IsRegular() {
			found = append(found, program{file: f.Name(), os: m[1], arch: m[2]})
		}
	}
	return found, nil
}

// path is where a file of the folder is.
func (v *version) path(name string) string { return filepath.Join(v.dist, name) }

// bare is the version without its v, as packages write it.
func (v *version) bare() string { return strings.TrimPrefix(v.name, "v") }

// builder is the toolchain of the binaries.
func builder() string { return runtime.Version() }
