package testserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Program is a program in another language: a command in a directory.
type Program struct {
	Dir     string
	Env     []string // added to the environment of the process
	Command []string
}

// Run runs the program with additional arguments and an input, and returns its output.
func (p *Program) Run(ctx context.Context, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	command := append(append([]string{}, p.Command...), args...)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = p.Dir, append(os.Environ(), p.Env...), strings.NewReader(input)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(command, " "), err, out.String(), said.String())
	}
	return out.String(), nil
}

// libraries returns a directory in the cache in which command has installed the
// libraries that the files of dir list, once per content of the files.
func libraries(tb TB, dir string, files []string, command ...string) string {
	tb.Helper()
	cache, err := CacheDir()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	h := sha256.New()
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			tb.Fatalf("%v", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(data), data)
	}
	target := filepath.Join(cache, "libraries-"+filepath.Base(dir)+"-"+hex.EncodeToString(h.Sum(nil))[:12])
	done := filepath.Join(target, "installed")
	if _, err := os.Stat(done); err == nil {
		return target
	}
	// Install at the final path: a virtual environment cannot be moved.
	if err := errors.Join(os.RemoveAll(target), os.MkdirAll(target, 0o755)); err != nil {
		tb.Fatalf("%v", err)
	}
	for _, f := range files {
		if err := CopyFile(filepath.Join(dir, f), target); err != nil {
			tb.Fatalf("%v", err)
		}
	}
	p := Program{Dir: target, Command: command}
	_, err = p.Run(context.Background(), "")
	for tries := 1; err != nil && tries < 4; tries++ { // a mirror may be unreachable for a moment
		tb.Logf("%v", err)
		<-time.After(time.Duration(tries*tries) * 2 * time.Second)
		_, err = p.Run(context.Background(), "")
	}
	if err != nil {
		tb.Logf("%v", err)
		GiveUp(tb, &MissingError{Server: "libraries for " + dir, Fix: strings.Join(command, " ") + " in " + dir})
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		tb.Fatalf("%v", err)
	}
	return target
}

// Java returns the command that runs a Java program in one file with the libraries of
// dir's pom.xml, whose jars are checked against dir's SHA256SUMS.
func Java(tb TB, dir string) []string {
	tb.Helper()
	jvm, maven, err := JDK()
	if err != nil {
		GiveUp(tb, err)
	}
	libs := libraries(tb, dir, []string{"pom.xml", "SHA256SUMS"}, maven, "-B", "-q",
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=.")
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		tb.Fatalf("%v", err)
	}
	var jars []string
	for line := range strings.Lines(string(sums)) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		jar := filepath.Join(libs, name)
		data, err := os.ReadFile(jar)
		if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != want {
			tb.Fatalf("%s: SHA-256 differs from SHA256SUMS (%v)", jar, err)
		}
		jars = append(jars, jar)
	}
	return []string{jvm, "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", strings.Join(jars, string(os.PathListSeparator))}
}

// PythonVenv returns the Python of a virtual environment with the libraries of
// dir's requirements.txt.
func PythonVenv(tb TB, dir string) string {
	tb.Helper()
	interpreter, err := Python()
	if err != nil {
		GiveUp(tb, err)
	}
	const install = `python3=$1; "$python3" -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt`
	return filepath.Join(libraries(tb, dir, []string{"requirements.txt"}, "sh", "-c", install, "sh", interpreter), "venv", "bin", "python3")
}

// NodeModules returns node and the directory with the node_modules of dir's
// package-lock.json.
func NodeModules(tb TB, dir string) (node, libs string) {
	tb.Helper()
	node, npm, err := Node()
	if err != nil {
		GiveUp(tb, err)
	}
	return node, libraries(tb, dir, []string{"package.json", "package-lock.json"}, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
}

// CopyFile copies a file into dir.
func CopyFile(from, dir string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, filepath.Base(from)), data, 0o644)
}
