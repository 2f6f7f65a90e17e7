//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/postrider/postrider/internal/testserver"
)

const root = "../.."

// foreign is an architecture other than this machine's.
func foreign() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return "", err
	}
	if err := build(filepath.Join(dir, "postrider"), runtime.GOARCH, "./cmd/postrider"); err != nil {
		return dir, err
	}
	hello := filepath.Join(dir, "hello.go")
	if err := os.WriteFile(hello, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return dir, err
	}
	return dir, build(filepath.Join(dir, "foreign"), foreign(), hello)
})

// build builds for Linux as a release does, but for -trimpath: packages that are compiled for tests serve too.
func build(to, arch, from string) error {
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", to, from)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.New(string(out))
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := built(); err == nil || dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// binaries copies the programs of a version into an empty folder: the real binary for this machine's
// architecture, and a small one for another.
func binaries(name, dist string) (*version, error) {
	from, err := built()
	if err != nil {
		return nil, err
	}
	v := &version{name: name, commit: strings.Repeat("a1", 20), time: time.Unix(1_700_000_000, 0).UTC(), dist: dist, folder: root}
	for file, arch := range map[string]string{"postrider": runtime.GOARCH, "foreign": foreign()} {
		data, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(v.path("postrider_"+name+"_linux_"+arch), data, 0o755); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// packages has those of each version that tests read.
var packages sync.Map

// released returns the packages of a version. Tests share them, for it takes long to compress them: change none.
func released(t *testing.T, name string) *version {
	t.Helper()
	once, _ := packages.LoadOrStore(name, sync.OnceValues(func() (*version, error) {
		from, err := built()
		if err != nil {
			return nil, err
		}
		dist := filepath.Join(from, name)
		if err := os.Mkdir(dist, 0o755); err != nil {
			return nil, err
		}
		v, err := binaries(name, dist)
		if err != nil {
			return nil, err
		}
		return v, v.make()
	}))
	v, err := once.(func() (*version, error))()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// needs gives the test up without a program of Debian.
func needs(t *testing.T, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		testserver.GiveUp(t, &testserver.MissingError{Server: program, Fix: "apt-get install " + pkg})
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		testserver.GiveUp(t, &testserver.MissingError{Server: "root on Linux", Fix: "run this test as root on Linux", Optional: true})
	}
}

// TestTwoBuildsAreEqual: two runs on the same binaries make the same bytes, and a later one replaces what is there.
func TestTwoBuildsAreEqual(t *testing.T) {
	one, dist := released(t, "v0.1.0"), t.TempDir()
	files, err := one.files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(slices.Clone(files), sums, "oci/blobs/sha256/"+strings.Repeat("0", 64)) { // of an earlier run
		left := filepath.Join(dist, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(left), 0o755), os.WriteFile(left, []byte("earlier"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	two, err := binaries(one.name, dist)
	if err != nil {
		t.Fatal(err)
	}
	if err := two.make(); err != nil {
		t.Fatal(err)
	}
	others, err := two.files()
	if err != nil || !slices.Equal(files, others) {
		t.Fatalf("files differ: %q and %q, %v", files, others, err)
	}
	for _, name := range append(files, sums) {
		a, err := os.ReadFile(one.path(name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(two.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds", name)
		}
		host, _ := os.Hostname()
		if !strings.HasPrefix(name, "postrider_v") && len(host) > 3 && bytes.Contains(a, []byte(host)) {
			t.Errorf("%s names the machine that built it", name)
		}
	}
	if got := command(t, one.dist, "sha256sum", "--check", "--strict", sums); strings.Count(got, ": OK\n") != len(files) {
		t.Errorf("sha256sum: %s", got)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`postrider[_-]v?0\.1\.0[\w.-]*\w`).FindAllString(string(page), -1) {
		if !slices.Contains(files, name) {
			t.Errorf("docs/install.md names %s, which a release does not have: %q", name, files)
		}
	}
	for _, want := range []string{"_amd64.deb", "_arm64.deb", "_linux_amd64.tar.gz", "_linux_arm64.tar.gz", ".x86_64.rpm", ".aarch64.rpm", "_oci.tar", "_linux_amd64.cdx.json", "_provenance.json"} {
		if !slices.ContainsFunc(files, func(name string) bool { return strings.HasSuffix(name, want) }) {
			t.Errorf("no file ends with %s: %q", want, files)
		}
	}
}

// TestPapers: the bill has every module of the binary, the provenance every file with its digest.
func TestPapers(t *testing.T) {
	v := released(t, "v0.1.0")
	text, err := os.ReadFile(v.path("postrider_v0.1.0_linux_" + runtime.GOARCH + ".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]cdx.Component{}
	for _, c := range *bom.Components {
		found[c.Name] = c
	}
	if pgx := found["github.com/jackc/pgx/v5"]; pgx.Hashes == nil || !strings.HasPrefix(pgx.PackageURL, "pkg:golang/github.com/jackc/pgx/v5@v5.") || len(found) < 40 {
		t.Errorf("the bill has %d modules, pgx as %+v", len(found), pgx)
	}
	var p provenance
	if text, err = os.ReadFile(v.path("postrider_v0.1.0_provenance.json")); err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	files, err := v.files()
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Subject) != len(files)-1 || p.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != v.commit {
		t.Errorf("provenance of %d files, want %d: %s", len(p.Subject), len(files)-1, text)
	}
}

func TestMistakes(t *testing.T) {
	v := version{name: "v0.1.0", commit: "a", time: time.Unix(1, 0), dist: t.TempDir()}
	if err := v.make(); err == nil || !strings.Contains(err.Error(), "has no binary for linux") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := (&version{name: "v0.1.0"}).make(); err == nil || !strings.Contains(err.Error(), "-commit") {
		t.Errorf("no commit: %v", err)
	}
}

// image unpacks this machine's image from the layout and returns its folder and settings.
func image(t *testing.T, v *version) (string, *v1.ConfigFile, int64) {
	t.Helper()
	at, err := layout.FromPath(v.path("oci"))
	if err != nil {
		t.Fatal(err)
	}
	outer, err := at.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	list, err := outer.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "0.1.0" {
		t.Fatalf("index %+v, %v", list, err)
	}
	inner, err := outer.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if list, err = inner.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var arches []string
	var mine v1.Image
	var download int64 // of the larger one
	for _, m := range list.Manifests {
		arches = append(arches, m.Platform.OS+"/"+m.Platform.Architecture)
		one, err := inner.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		layers, err := one.Layers()
		if err != nil {
			t.Fatal(err)
		}
		var size int64
		for _, l := range layers {
			n, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			size += n
		}
		download = max(download, size)
		if m.Platform.Architecture == runtime.GOARCH {
			mine = one
		}
	}
	if !slices.Equal(arches, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("architectures %v", arches)
	}
	config, err := mine.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpack(t, dir, mutate.Extract(mine))
	return dir, config, download
}

// unpack writes a tar of files and folders.
func unpack(t *testing.T, dir string, from io.ReadCloser) {
	t.Helper()
	defer from.Close()
	in := tar.NewReader(from)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, h.FileInfo().Mode().Perm())
		} else {
			err = create(name, func(w io.Writer) error { _, err := io.Copy(w, in); return err })
		}
		if err == nil {
			err = os.Chmod(name, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage: the image is small, has what a relay needs and nothing else, and its program runs in it as its
// user on files that it cannot write, with the health check of its settings.
func TestImage(t *testing.T) {
	v := released(t, "v0.1.0")
	dir, config, download := image(t, v)
	var names []string
	zones := 0
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch inside := strings.TrimPrefix(name, dir); {
		case err != nil || d.IsDir():
		case strings.HasPrefix(inside, "/usr/share/zoneinfo/"):
			zones++
		default:
			names = append(names, inside)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/etc/group", "/etc/passwd", "/etc/ssl/certs/ca-certificates.crt", "/postrider"}; !slices.Equal(names, want) || zones < 400 {
		t.Errorf("%d time zones, and the files %q, want %q", zones, names, want)
	}
	const most = 45 << 20
	t.Logf("%.1f MiB to download", float64(download)/(1<<20))
	if download > most {
		t.Errorf("%d bytes to download, want at most %d", download, most)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/postrider"}) || !slices.Equal(c.Cmd, []string{"relay"}) ||
		!slices.Equal(c.Healthcheck.Test, []string{"CMD", "/postrider", "health"}) || !config.Created.Equal(v.time) || c.Labels["org.opencontainers.image.revision"] != v.commit {
		t.Errorf("settings %+v", c)
	}
	authorities, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !x509.NewCertPool().AppendCertsFromPEM(authorities) || bytes.Count(authorities, []byte("BEGIN")) < 80 {
		t.Errorf("certificate authorities: %d, %v", bytes.Count(authorities, []byte("BEGIN")), err)
	}
	runImage(t, dir, config)
}

// runImage runs the image's program as a container engine would: its root, user, environment and command. The relay
// trusts the image's certificate authorities, here that of a collector, and logs in the time zone of the variable TZ.
func runImage(t *testing.T, dir string, config *v1.ConfigFile) {
	t.Helper()
	needsRoot(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	inside := func(argv ...string) *exec.Cmd {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Path, cmd.Err, cmd.Dir, cmd.Env = argv[0], nil, "/", slices.Clone(config.Config.Env)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd
	}
	var exports atomic.Int64
	collector := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { exports.Add(1) }))
	defer collector.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"), authority, 0o644); err != nil {
		t.Fatal(err)
	}
	listen := testserver.FreeAddr(t)
	relay := inside("/postrider", "relay", "--store", "memory:", "--broker", "memory:", "--listen", listen)
	relay.Env = append(relay.Env, "TZ=Asia/Tokyo", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="+collector.URL, "OTEL_METRIC_EXPORT_INTERVAL=100")
	var said bytes.Buffer
	relay.Stderr = &said
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		cmd := inside(config.Config.Healthcheck.Test[1:]...)
		cmd.Env = append(cmd.Env, "POSTRIDER_LISTEN="+listen)
		return cmd.Run()
	}
	healthy := false
	for end := time.Now().Add(time.Minute); (!healthy || exports.Load() == 0) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		healthy = check() == nil
	}
	err := errors.Join(relay.Process.Signal(syscall.SIGTERM), relay.Wait())
	if !healthy || err != nil {
		t.Errorf("healthy %t, %v\n%s", healthy, err, &said)
	}
	if exports.Load() == 0 || !strings.Contains(said.String(), "+09:00 ") {
		t.Errorf("%d exports to a collector with a certificate of the image's authority; the log must be in Tokyo's time:\n%s", exports.Load(), &said)
	}
	var ended *exec.ExitError
	if err := check(); !errors.As(err, &ended) {
		t.Errorf("the health check of a relay that has ended: %v", err)
	}
}

// TestUnitsAreHardened: systemd rates how much each unit could do if it were taken over.
func TestUnitsAreHardened(t *testing.T) {
	needs(t, "systemd-analyze", "systemd")
	for _, unit := range []string{"postrider.service", "postrider@.service"} {
		text := command(t, "files", "systemd-analyze", "security", "--offline=true", "--threshold=20", "./"+unit)
		t.Log(text[strings.LastIndex(text, "Overall"):])
	}
}
