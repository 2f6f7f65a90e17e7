//go:build unix

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBill lists the modules in a binary, as the linker recorded them.
func (v *version) writeBill(p program) error {
	info, err := buildinfo.ReadFile(v.path(p.file))
	if err != nil {
		return err
	}
	sum, err := sumOf(v.path(p.file))
	if err != nil {
		return err
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: v.time.Format("2006-01-02T15:04:05Z07:00"),
		Component: &cdx.Component{
			BOMRef: "postrider", Type: cdx.ComponentTypeApplication, Name: p.file, Version: v.name, PackageURL: purl(info.Main.Path, v.name),
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	components := []cdx.Component{{
		BOMRef: "go", Type: cdx.ComponentTypeLibrary, Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PackageURL: purl("std", strings.TrimPrefix(info.GoVersion, "go")),
	}}
	needs := []string{"go"}
	for _, m := range info.Deps {
		c, err := component(m)
		if err != nil {
			return err
		}
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: "postrider", Dependencies: &needs}}
	return create(v.path(strings.TrimSuffix(p.file, ".exe")+".cdx.json"), func(w io.Writer) error {
		return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	})
}

// component is one module. Its hash is Go's h1, a SHA-256 of the list of its files.
func component(m *debug.Module) (cdx.Component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	c := cdx.Component{BOMRef: m.Path + "@" + m.Version, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version)}
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		raw, err := base64.StdEncoding.DecodeString(sum)
		if err != nil {
			return c, fmt.Errorf("sum of %s: %w", m.Path, err)
		}
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
	}
	return c, nil
}

// purl is the package URL of a Go module.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }

// provenance is an in-toto statement with SLSA's predicate. Nobody has signed it.
type provenance struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string            `json:"buildType"`
			ExternalParameters   map[string]string `json:"externalParameters"`
			ResolvedDependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

// writeProvenance records which commit, toolchain and command made the files.
func (v *version) writeProvenance() error {
	var p provenance
	p.Type, p.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	files, err := v.files()
	if err != nil {
		return err
	}
	own := "postrider_" + v.name + "_provenance.json"
	for _, name := range files {
		if name == own { // of an earlier run
			continue
		}
		sum, err := sumOf(v.path(name))
		if err != nil {
			return err
		}
		p.Subject = append(p.Subject, subject{name, map[string]string{"sha256": sum}})
	}
	build := &p.Predicate.BuildDefinition
	build.BuildType = project + "/blob/main/Makefile"
	build.ExternalParameters = map[string]string{"command": "make release VERSION=" + v.name}
	build.ResolvedDependencies = []resource{
		{URI: "git+" + project, Digest: map[string]string{"gitCommit": v.commit}},
		{URI: "pkg:golang/toolchain@" + strings.TrimPrefix(builder(), "go")},
	}
	p.Predicate.RunDetails.Builder.ID = project + "/blob/main/internal/release"
	return create(v.path(own), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(&p)
	})
}

const sums = "SHA256SUMS"

// writeSums writes the checksums of every file, as sha256sum --check reads them.
func (v *version) writeSums() error {
	files, err := v.files()
	if err != nil {
		return err
	}
	return create(v.path(sums), func(w io.Writer) error {
		for _, name := range files {
			sum, err := sumOf(v.path(name))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s  %s\n", sum, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// files lists what is in the folder, in order, but for the checksums.
func (v *version) files() ([]string, error) {
	var names []string
	err := filepath.WalkDir(v.dist, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		inside, err := filepath.Rel(v.dist, name)
		if err == nil && inside != sums {
			names = append(names, filepath.ToSlash(inside))
		}
		return err
	})
	return names, err
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
