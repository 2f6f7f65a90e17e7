package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubernetesVersion is the version of the programs that `make servers ALL=1` builds.
const kubernetesVersion = "1.36.3"

// programs returns the directory with etcd, kube-apiserver and kube-controller-manager.
func programs(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("POSTRIDER_SERVERS")
	if cache == "" && os.Geteuid() == 0 { // as package testserver, which belongs to the workspace
		cache = "/var/cache/postrider/servers"
	} else if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "postrider", "servers")
	}
	dir := filepath.Join(cache, "kubernetes-"+kubernetesVersion)
	if _, err := os.Stat(filepath.Join(dir, "etcd")); err != nil {
		missing(t, dir)
	}
	return dir
}

// missing skips a test in the way of testserver.GiveUp, which belongs to the workspace.
func missing(t *testing.T, dir string) {
	t.Helper()
	fix := "make servers ALL=1"
	if os.Getenv("POSTRIDER_REQUIRE_SERVERS") == "1" {
		t.Fatalf("no Kubernetes in %s: get it with: %s", dir, fix)
	}
	if path := os.Getenv("POSTRIDER_SKIP_LOG"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, "kube.test %s: no Kubernetes %s (%s)\n", t.Name(), kubernetesVersion, fix)
	}
	t.Skipf("SKIPPED, NOT TESTED: no Kubernetes in %s; get it with: %s", dir, fix)
}

// cluster is a control plane without nodes: nothing runs the pods that it makes.
type cluster struct {
	*testing.T
	config     *rest.Config
	kubeconfig string
	client     *kubernetes.Clientset
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// launch starts a program that runs until the test ends.
func launch(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(dir, name), args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has nothing to keep
		_ = cmd.Wait()
		if t.Failed() {
			tail := said.Bytes()
			t.Logf("end of the log of %s:\n%s", name, tail[max(0, len(tail)-3000):])
		}
	})
}

// start starts etcd, the API server and the controllers on free ports of this machine.
func start(t *testing.T) *cluster {
	t.Helper()
	bin, dir := programs(t), t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	accounts := write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	token := rand.Text()
	tokens := write("tokens.csv", token+",admin,admin,system:masters\n")

	store, peer, port := "http://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t), freePort(t)
	launch(t, bin, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", store, "--advertise-client-urls", store,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	launch(t, bin, "kube-apiserver", "--etcd-servers", store, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://127.0.0.1", "--service-account-key-file", accounts, "--service-account-signing-key-file", accounts,
		"--service-cluster-ip-range", "10.0.0.0/24")
	c := &cluster{T: t, kubeconfig: write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %s}}]
`, port, token))}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.Burst = 200, 400
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	c.until("the API server is ready", func(ctx context.Context) bool {
		body, err := c.client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && strings.TrimSpace(string(body)) == "ok"
	})
	launch(t, bin, "kube-controller-manager", "--kubeconfig", c.kubeconfig, "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", freePort(t),
		"--cert-dir", filepath.Join(dir, "controller-certs"), "--service-account-private-key-file", accounts)
	return c
}

// until waits for a condition.
func (c *cluster) until(what string, done func(context.Context) bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 4*time.Minute)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); !done(ctx); {
		select {
		case <-tick:
		case <-ctx.Done():
			c.Fatalf("not within four minutes: %s", what)
		}
	}
}
