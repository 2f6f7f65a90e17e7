package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/postrider/postrider/internal/testserver"
)

// kubernetesVersion is the version of the API server and controllers that the chart is applied
// to: tools/kube, outside of the workspace, has the same number.
const kubernetesVersion = "1.36.3"

// kubernetesPresent finds what kubernetes compiles.
func kubernetesPresent() error {
	cache, err := testserver.CacheDir()
	if err != nil {
		return err
	}
	for _, program := range []string{"etcd", "kube-controller-manager", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(cache, "kubernetes-"+kubernetesVersion, program)); err != nil {
			return &testserver.MissingError{Server: "Kubernetes " + kubernetesVersion, Fix: "make servers ALL=1"}
		}
	}
	return nil
}

// etcdModule is the etcd whose client this Kubernetes has.
const etcdModule = "go.etcd.io/etcd/server/v3"

// kubernetes compiles the API server, the controllers and etcd, a quarter of an hour on two
// quiet cores. Kubernetes replaces its parts by folders of its repository; as modules they have the same
// number below 0.
func kubernetes(ctx context.Context, in *installer) error {
	const module = "k8s.io/kubernetes"
	env := []string{"GOWORK=off", "GOFLAGS=-mod=mod", "GOOS=", "GOARCH=", "CGO_ENABLED=0"}
	return in.fresh("kubernetes-"+kubernetesVersion, func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@v"+kubernetesVersion)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("go mod download %s: %w", module, err)
		}
		var got struct{ GoMod string }
		if err := json.Unmarshal(out, &got); err != nil {
			return err
		}
		text, err := os.ReadFile(got.GoMod)
		if err != nil {
			return err
		}
		src := filepath.Join(dir, "src")
		if err := os.Mkdir(src, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(src, "go.mod"), []byte(kubernetesModule(string(text))), 0o644); err != nil {
			return err
		}
		if err := in.run(ctx, src, env, "go", "get", etcdModule+"@v3.6.8"); err != nil {
			return err
		}
		// One program at a time: each has its own time limit, and another try continues from Go's cache.
		flags := []string{"build", "-trimpath", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion, "-o"}
		for _, p := range []struct{ name, pkg string }{
			{"etcd", etcdModule}, {"kube-controller-manager", module + "/cmd/kube-controller-manager"}, {"kube-apiserver", module + "/cmd/kube-apiserver"},
		} {
			if err := in.run(ctx, src, env, "go", append(flags, filepath.Join(dir, p.name), p.pkg)...); err != nil {
				return err
			}
		}
		return os.RemoveAll(src)
	})
}

var replaced = regexp.MustCompile(`(?m)^\t(k8s\.io/[a-z0-9-]+) => \./staging/src/`)

// kubernetesModule returns a go.mod that builds the programs of Kubernetes, whose own is goMod.
func kubernetesModule(goMod string) string {
	_, minor, _ := strings.Cut(kubernetesVersion, ".")
	var b strings.Builder
	fmt.Fprintf(&b, "module kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n", kubernetesVersion)
	for _, m := range replaced.FindAllStringSubmatch(goMod, -1) {
		fmt.Fprintf(&b, "\t%s => %s v0.%s\n", m[1], m[1], minor)
	}
	return b.String() + ")\n"
}
