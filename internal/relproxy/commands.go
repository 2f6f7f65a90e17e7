//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tidy runs go mod tidy in every module until none changes: a module's go.mod
// is part of what the modules that require it see.
func (p *proxy) tidy(ctx context.Context) error {
	if err := copyLicense(p.root); err != nil {
		return err
	}
	for range 5 {
		modules, err := p.publish()
		if err != nil {
			return err
		}
		changed := false
		var failed []error
		for _, m := range modules {
			c, err := p.tidyOne(ctx, m)
			changed = changed || c
			failed = append(failed, err)
		}
		if !changed {
			return errors.Join(failed...)
		}
	}
	return errors.New("go.mod files still change after five rounds")
}

func (p *proxy) tidyOne(ctx context.Context, m module) (changed bool, err error) {
	before, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return false, err
	}
	if err := command(ctx, m.dir, p.env(p.tidied), "go", "mod", "tidy"); err != nil {
		return false, err
	}
	if err := stripSums(m.dir); err != nil {
		return false, err
	}
	after, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return false, err
	}
	if changed = !bytes.Equal(before, after); changed {
		fmt.Printf("%s: go.mod changed\n", m.path)
	}
	return changed, nil
}

// in runs a command in a module's directory.
func (p *proxy) in(ctx context.Context, dir string, argv []string) error {
	if _, err := p.publish(); err != nil {
		return err
	}
	dir = filepath.Join(p.root, dir)
	return errors.Join(command(ctx, dir, p.env(p.tidied), argv...), stripSums(dir))
}

// stranger looks at each module (or those named, by directory) as somebody does
// who has no workspace: its go.mod and go.sum are complete, its tests compile,
// and it builds from an empty module that depends on it.
func (p *proxy) stranger(ctx context.Context, only []string) error {
	modules, err := p.publish()
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range modules {
		rel, err := filepath.Rel(p.root, m.dir)
		if err != nil {
			return err
		}
		if len(only) > 0 && !slices.Contains(only, rel) {
			continue
		}
		if err := errors.Join(p.checkAlone(ctx, m), p.buildAsStranger(ctx, m)); err != nil {
			fmt.Printf("FAIL %s: %v\n", m.path, err)
			failed = append(failed, fmt.Errorf("%s: %w", m.path, err))
			continue
		}
		fmt.Printf("ok   %s\n", m.path)
	}
	return errors.Join(failed...)
}

// checkAlone checks a copy of the module without the workspace, which hides
// requirements and sums that are missing or out of date.
func (p *proxy) checkAlone(ctx context.Context, m module) error {
	dir, err := os.MkdirTemp("", "alone")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := p.unpack(m, dir); err != nil {
		return err
	}
	if err := command(ctx, dir, p.env(p.tidied), "go", "mod", "tidy"); err != nil {
		return err
	}
	if err := command(ctx, dir, p.env(p.tidied, "-trimpath"), "go", "vet", "./..."); err != nil {
		return err
	}
	if err := stripSums(dir); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := sameFile(filepath.Join(m.dir, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// sameFile compares a file of the tree with what go mod tidy made of it.
func sameFile(name, tidied string) error {
	have, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	want, err := os.ReadFile(tidied)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !bytes.Equal(have, want) {
		return fmt.Errorf("%s is not tidy: run \"make tidy\"", name)
	}
	return nil
}

func (p *proxy) buildAsStranger(ctx context.Context, m module) error {
	dir, err := os.MkdirTemp("", "stranger")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	goMod := "module stranger\n\ngo " + m.goLine + "\n\nrequire " + m.path + " " + version + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(goMod), 0o644); err != nil {
		return err
	}
	// Equal builds in different directories share a cache entry.
	return command(ctx, dir, p.env(p.ambient, "-mod=mod", "-trimpath"), "go", "build", m.path+"/...")
}

// copyLicense puts the root's LICENSE into every module: a module's archive
// holds nothing from outside its directory.
func copyLicense(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return err
	}
	modules, err := findModules(root)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := os.WriteFile(filepath.Join(m.dir, "LICENSE"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stripSums removes our own modules from go.sum: their v0.0.0 changes with
// every edit, and the workspace replaces them anyway.
func stripSums(dir string) error {
	name := filepath.Join(dir, "go.sum")
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, prefix+" ") && !strings.HasPrefix(line, prefix+"/") {
			kept.WriteString(line)
		}
	}
	switch {
	case kept.Len() == len(b):
		return nil
	case kept.Len() == 0:
		return os.Remove(name)
	}
	return os.WriteFile(name, []byte(kept.String()), 0o644)
}
