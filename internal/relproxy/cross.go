//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// own are the folders of the workspace that nobody builds on another platform:
// they test, measure or make the rest.
var own = []string{"/internal/", "/bench", "/proof", "/examples", "/tools"}

// cross builds the program and every library for the platforms of a release, and
// vets the program for each of their systems. It uses the build cache and keeps nothing, and asks the
// compiler for no optimization, which takes two thirds of its time.
func cross(ctx context.Context, root, program string, targets []platform) error {
	libraries, err := librariesOf(ctx, root)
	if err != nil {
		return err
	}
	var failed []error
	vetted := map[string]bool{runtime.GOOS: true}
	for _, target := range targets {
		began := time.Now()
		env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath '-gcflags=all=-N -l'", "GOOS="+target.os, "GOARCH="+target.arch)
		steps := [][]string{
			{"go", "build", "-o", os.DevNull, "./" + program},
			append([]string{"go", "build"}, libraries...),
		}
		if !vetted[target.os] {
			vetted[target.os] = true
			steps = append(steps, []string{"go", "vet", "./" + program + "/..."})
		}
		for _, step := range steps {
			if err := command(ctx, root, env, step...); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", target, err))
			}
		}
		fmt.Printf("%s built in %s\n", target, time.Since(began).Round(100*time.Millisecond))
	}
	return errors.Join(failed...)
}

// librariesOf lists the packages of the workspace that applications import.
func librariesOf(ctx context.Context, root string) ([]string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-f", `{{if ne .Name "main"}}{{.ImportPath}}{{end}}`, "work")
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	var libraries []string
	for line := range bytes.Lines(out) {
		path := strings.TrimSpace(string(line))
		inside, ours := strings.CutPrefix(path, prefix)
		if ours && !mine(inside) && path != "" {
			libraries = append(libraries, path)
		}
	}
	return libraries, nil
}

// mine reports whether the package at this place in the repository is for the repository itself.
func mine(inside string) bool {
	for _, dir := range own {
		if strings.HasPrefix(inside+"/", strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}
