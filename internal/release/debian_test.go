//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/testserver"
)

// TestDebContents: what dpkg says of the package, without an installation.
func TestDebContents(t *testing.T) {
	needs(t, "dpkg-deb", "dpkg")
	v := released(t, "v0.1.0-rc.1")
	deb := v.path("postrider_0.1.0~rc.1-1_" + runtime.GOARCH + ".deb")
	info := command(t, ".", "dpkg-deb", "--info", deb)
	for _, want := range []string{" Package: postrider\n", " Version: 0.1.0~rc.1-1\n", " Pre-Depends: passwd\n", " Architecture: " + runtime.GOARCH + "\n"} {
		if !strings.Contains(info, want) {
			t.Errorf("%q is missing:\n%s", want, info)
		}
	}
	contents := command(t, ".", "dpkg-deb", "--contents", deb)
	for _, want := range []string{
		"./etc/postrider/postrider.yml", "./usr/bin/postrider", "./usr/lib/systemd/system/postrider.service", "./usr/lib/systemd/system/postrider@.service", "./usr/share/doc/postrider/copyright",
		"./usr/share/man/man1/postrider.1.gz", "./usr/share/man/man1/postrider-dead-retry.1.gz", "./usr/share/bash-completion/completions/postrider",
	} {
		if !strings.Contains(contents, " "+want+"\n") {
			t.Errorf("%s is missing:\n%s", want, contents)
		}
	}
	if got := strings.TrimSpace(command(t, ".", "dpkg-deb", "--ctrl-tarfile", deb)); got == "" {
		t.Error("no control files")
	}
	dir := t.TempDir()
	command(t, ".", "dpkg-deb", "--control", deb, dir)
	conffiles, err := os.ReadFile(filepath.Join(dir, "conffiles"))
	if err != nil || string(conffiles) != "/etc/postrider/postrider.yml\n" {
		t.Errorf("conffiles %q, %v", conffiles, err)
	}
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		command(t, dir, "sh", "-n", script)
	}
	// preinst accepts a user that it finds.
	postrm, err := os.ReadFile(filepath.Join(dir, "postrm"))
	if err != nil || bytes.Contains(postrm, []byte("userdel")) || bytes.Contains(postrm, []byte("groupdel")) {
		t.Errorf("the removal deletes a user or a group that the package may not have made: %v\n%s", err, postrm)
	}
}

// system is a clean Debian in a folder.
type system struct {
	*testing.T
	dir string
}

// debian unpacks a clean Debian 12 with rpm and systemd, which mmdebstrap makes once.
func debian(t *testing.T) *system {
	t.Helper()
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("installs a Debian: make matrix")
	}
	needsRoot(t)
	needs(t, "mmdebstrap", "mmdebstrap")
	cache, err := testserver.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(cache, "debian-12-rpm-systemd.tar")
	if _, err := os.Stat(base); err != nil {
		const script = `mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
mmdebstrap --mode=root --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=systemd,rpm bookworm "$1.new.tar" "deb $mirror bookworm main" && mv "$1.new.tar" "$1"`
		command(t, ".", "sh", "-c", script, "sh", base)
	}
	s := &system{T: t, dir: t.TempDir()}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, ".", "tar", "--extract", "--numeric-owner", "--file", base, "--directory", s.dir, "--exclude=./dev/*")
	if err := os.WriteFile(filepath.Join(s.dir, "dev/null"), nil, 0o666); err != nil { // a file takes what scripts throw away
		t.Fatal(err)
	}
	return s
}

// in is a command inside of the system.
func (s *system) in(user string, argv ...string) *exec.Cmd {
	args := []string{s.dir}
	if user != "" {
		args = []string{"--userspec=" + user + ":" + user, s.dir}
	}
	cmd := exec.Command("chroot", append(args, argv...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

func (s *system) run(argv ...string) string {
	s.Helper()
	out, err := s.in("", argv...).CombinedOutput()
	if err != nil {
		s.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// follows runs a command of docs/install.md in the folder of the packages. The page is about amd64.
func (s *system) follows(line string, more ...string) {
	s.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		s.Fatal(err)
	}
	if runtime.GOARCH == "amd64" && !strings.Contains(string(page), "\nsudo "+line+"\n") {
		s.Errorf("docs/install.md has no line: sudo %s", line)
	}
	s.run(append([]string{"env", "--chdir=/tmp"}, append(strings.Fields(line), more...)...)...)
}

// bring copies a package into the system.
func (s *system) bring(file string) string {
	s.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "tmp", filepath.Base(file)), data, 0o644)
	}
	if err != nil {
		s.Fatal(err)
	}
	return "/tmp/" + filepath.Base(file)
}

// tree lists every file that is not the package managers' own or a backup, with the contents of the lists of users.
func (s *system) tree() []string {
	s.Helper()
	var list []string
	own := []string{"/tmp", "/run", "/proc", "/sys", "/dev", "/var/lib/dpkg", "/var/lib/rpm", "/root/.rpmdb", "/var/log", "/var/cache"}
	err := filepath.WalkDir(s.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside := strings.TrimPrefix(name, s.dir)
		if slices.Contains(own, inside) {
			return filepath.SkipDir
		}
		line := inside
		switch inside {
		case "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-", "/etc/.pwd.lock":
			return nil
		case "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow":
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += "\n" + string(text)
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return list
}

// treeWithUser lists what the system has after its packages are gone: they leave their user.
func (s *system) treeWithUser() []string {
	s.Helper()
	s.run("sh", "-e", "-c", "groupadd --system postrider; useradd --system --gid postrider --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin postrider")
	defer s.run("sh", "-e", "-c", "userdel postrider; if getent group postrider >/dev/null; then groupdel postrider; fi")
	return s.tree()
}

// same fails for what one tree has and the other has not.
func (s *system) same(when string, before, after []string) {
	s.Helper()
	for _, line := range after {
		if !slices.Contains(before, line) {
			s.Errorf("%s: left behind: %s", when, line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			s.Errorf("%s: gone: %s", when, line)
		}
	}
}

// installed checks what every package must have brought.
func (s *system) installed() {
	s.Helper()
	if got := s.run("stat", "-c", "%U:%G %a", "/etc/postrider", "/etc/postrider/postrider.yml", "/usr/bin/postrider"); got != "root:postrider 750\nroot:postrider 640\nroot:root 755\n" {
		s.Errorf("owners and modes:\n%s", got)
	}
	if got := s.run("getent", "passwd", "postrider"); !strings.Contains(got, ":/nonexistent:/usr/sbin/nologin") {
		s.Errorf("user: %s", got)
	}
	s.run("systemd-analyze", "verify", "--man=no", "postrider.service", "postrider@shop.service")
	s.run("systemctl", "--quiet", "enable", "postrider.service", "postrider@shop.service")
}

const settings = "/etc/postrider/postrider.yml"

// configure writes the settings as an administrator does.
func (s *system) configure(text string) {
	s.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, settings), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		s.Fatal(err)
	}
	if err := f.Close(); err != nil {
		s.Fatal(err)
	}
}

// carries runs the installed relay as the unit does, with one message.
func (s *system) carries() {
	s.Helper()
	pg, server := testserver.SharedPostgres(s, "15"), testserver.SharedNATS(s)
	s.configure(fmt.Sprintf("store: %s\nbroker: %s\nlisten: \"\"\n", pg.Database(s), server.URL))
	nc, err := nats.Connect(server.URL)
	if err != nil {
		s.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.Fatal(err)
	}
	topic := fmt.Sprintf("deb%d", time.Now().UnixNano())
	stream, err := js.CreateStream(s.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
	if err != nil {
		s.Fatal(err)
	}
	relay := func(argv ...string) *exec.Cmd {
		return s.in("postrider", append([]string{"/usr/bin/postrider", "--config", settings}, argv...)...)
	}
	if out, err := relay("migrate").CombinedOutput(); err != nil {
		s.Fatalf("migrate: %v\n%s", err, out)
	}
	enqueue := relay("enqueue")
	enqueue.Stdin = strings.NewReader(`{"topic":"` + topic + `","key":"k","type":"t","payload":{}}` + "\n")
	if out, err := enqueue.CombinedOutput(); err != nil {
		s.Fatalf("enqueue: %v\n%s", err, out)
	}
	var said bytes.Buffer
	run := relay("relay")
	run.Stderr = &said
	if err := run.Start(); err != nil {
		s.Fatal(err)
	}
	arrived := func() bool {
		info, err := stream.Info(s.Context())
		return err == nil && info.State.Msgs == 1
	}
	end := time.Now().Add(time.Minute)
	for !arrived() && time.Now().Before(end) {
		time.Sleep(20 * time.Millisecond)
	}
	ok := arrived()
	_ = run.Process.Signal(syscall.SIGTERM)
	if err := run.Wait(); err != nil || !ok {
		s.Errorf("arrived %t, %v\n%s", ok, err, &said)
	}
}

// TestDebianPackage installs the deb in a clean Debian, where its relay carries a message as the package's user.
// An upgrade keeps the settings, a removal only them, and a purge leaves the system as it was but for the user.
func TestDebianPackage(t *testing.T) {
	s := debian(t)
	before := s.treeWithUser()
	deb := func(name string) string {
		v := released(t, name)
		return s.bring(v.path("postrider_" + v.bare() + "-1_" + runtime.GOARCH + ".deb"))
	}
	s.follows("dpkg --install " + filepath.Base(deb("v0.1.0")))
	s.installed()
	s.carries()
	kept := s.run("cat", settings)
	s.run("dpkg", "--install", deb("v0.2.0"))
	if got := s.run("cat", settings); got != kept {
		t.Errorf("an upgrade has changed the settings:\n%s", got)
	}
	if got := s.run("dpkg-query", "--show", "--showformat", "${Version} ${Status}", "postrider"); got != "0.2.0-1 install ok installed" {
		t.Errorf("after the upgrade: %s", got)
	}
	s.installed()
	s.run("dpkg", "--remove", "postrider")
	if got := s.run("cat", settings); got != kept {
		t.Errorf("a removal has changed the settings:\n%s", got)
	}
	s.follows("dpkg --purge postrider")
	s.same("purge", before, s.tree())
}

// TestRPMPackage is the same for the rpm.
func TestRPMPackage(t *testing.T) {
	s := debian(t)
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	rpm := func(name string) string {
		v := released(t, name)
		return s.bring(v.path("postrider-" + v.bare() + "-1." + arch + ".rpm"))
	}
	s.run("rpm", "--initdb")
	first := rpm("v0.1.0")
	before := s.treeWithUser()
	s.follows("rpm --install "+filepath.Base(first), "--nodeps") // Debian's rpm knows no package of Debian
	s.installed()
	s.carries()
	kept := s.run("cat", settings)
	s.run("rpm", "--upgrade", "--nodeps", rpm("v0.2.0"))
	if got := s.run("cat", settings); got != kept {
		t.Errorf("an upgrade has changed the settings:\n%s", got)
	}
	s.installed()
	s.follows("rpm --erase postrider")
	if got := s.run("cat", settings+".rpmsave"); got != kept {
		t.Errorf("the settings of a removed package:\n%s", got)
	}
	s.run("rm", "-r", "/etc/postrider")
	s.same("removal", before, s.tree())
}
