package testserver

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ApicurioVersion is the version of the server that "make servers ALL=1" installs.
const ApicurioVersion = "3.3.3"

// Apicurio is a running Apicurio Registry, a schema registry with Confluent's API. It
// keeps everything in memory, and starts in about ten seconds.
type Apicurio struct {
	Server

	Addr string // host:port
	Dir  string // holds server.log
}

// URL returns the address of Confluent's API.
func (a *Apicurio) URL() string { return "http://" + a.Addr + "/apis/ccompat/v7" }

// ApicurioApp returns the directory with the server.
func ApicurioApp() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "apicurio-"+ApicurioVersion)
	if !isFile(filepath.Join(dir, "quarkus-run.jar")) {
		return "", &MissingError{Server: "Apicurio Registry " + ApicurioVersion, Fix: "make servers ALL=1"}
	}
	return dir, nil
}

// java21 finds a Java of version 21 or newer: JAVA_HOME, the one on PATH, or one of
// /usr/lib/jvm.
func java21() (string, error) {
	var homes []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		homes = append(homes, home)
	}
	if path, err := exec.LookPath("java"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			homes = append(homes, filepath.Dir(filepath.Dir(path)))
		}
	}
	more, _ := filepath.Glob("/usr/lib/jvm/*")
	for _, home := range append(homes, more...) {
		release, err := os.ReadFile(filepath.Join(home, "release"))
		if err != nil {
			continue
		}
		_, version, _ := strings.Cut(string(release), `JAVA_VERSION="`)
		major, _, _ := strings.Cut(version, ".")
		if n, err := strconv.Atoi(strings.Trim(major, "\"\n")); err == nil && n >= 21 {
			return filepath.Join(home, "bin", "java"), nil
		}
	}
	return "", &MissingError{Server: "Java 21 or newer (for Apicurio Registry)", Fix: "install a JDK, and set JAVA_HOME to it", Optional: true}
}

// StartApicurio starts a server for one test, which may kill it. It is stopped and
// removed when the test ends.
func StartApicurio(tb TB) *Apicurio {
	tb.Helper()
	a, err := LaunchApicurio(context.Background(), "")
	return owned(tb, a, err)
}

// LaunchApicurio starts a server in dir, or in a temporary directory when dir is empty.
// ctx bounds the start; end the server with Close.
func LaunchApicurio(ctx context.Context, dir string) (*Apicurio, error) {
	app, err := ApicurioApp()
	if err != nil {
		return nil, err
	}
	java, err := java21()
	if err != nil {
		return nil, err
	}
	h, err := newHome(dir, nil) // a JDK may be in the directory of our own user
	if err != nil {
		return nil, err
	}
	a := &Apicurio{Dir: h.path}
	err = launch(2, func(ports []int) error {
		a.Addr = addr(ports[0])
		a.proc = &process{home: h, spec: spec{
			name: "Apicurio Registry " + ApicurioVersion,
			argv: []string{
				java, "-Xms64m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
				"-Djava.io.tmpdir=" + h.path, "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=" + strconv.Itoa(ports[0]),
				"-Dquarkus.management.host=127.0.0.1", "-Dquarkus.management.port=" + strconv.Itoa(ports[1]),
				"-Dquarkus.http.access-log.enabled=false", "-jar", filepath.Join(app, "quarkus-run.jar"),
			},
			dir: h.path, env: h.env(),
			stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			ready: a.ready,
		}}
		if err := a.proc.start(ctx); err != nil {
			return err
		}
		a.PID = a.proc.pid()
		return nil
	})
	if err != nil {
		h.remove()
		return nil, err
	}
	return a, nil
}

// ready succeeds once the server lists its subjects.
func (a *Apicurio) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL()+"/subjects", http.NoBody)
	return replies(req, err, "/subjects")
}
