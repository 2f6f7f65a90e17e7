package testserver

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// PubSub is a running instance of Google's emulator of Cloud Pub/Sub. It keeps
// everything in memory and accepts any credentials.
type PubSub struct {
	Server

	Addr string // host:port
	Dir  string // holds server.log
}

// pubsubJar returns the emulator's jar in the directory of Google's package.
func pubsubJar() (string, error) {
	found, err := filepath.Glob("/usr/lib/google-cloud-sdk/platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar")
	if err != nil || len(found) == 0 {
		return "", &MissingError{Server: "Pub/Sub emulator", Fix: "apt-get install google-cloud-cli-pubsub-emulator (Google's repository)", Optional: true}
	}
	return found[len(found)-1], nil
}

// PubSubVersion returns the version of the installed emulator; "" if it is missing.
func PubSubVersion() string {
	jar, err := pubsubJar()
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jar), "cloud-pubsub-emulator-"), "-all.jar")
}

// LaunchPubSub starts an emulator in dir, or in a temporary directory when dir is
// empty. ctx bounds the start; end the server with Close.
func LaunchPubSub(ctx context.Context, dir string) (*PubSub, error) {
	jar, err := pubsubJar()
	if err != nil {
		return nil, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &MissingError{Server: "Java (for the Pub/Sub emulator)", Fix: "apt-get install default-jre-headless", Optional: true}
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	p := &PubSub{Dir: h.path}
	if err := p.launch(ctx, h, java, jar); err != nil {
		h.remove()
		return nil, err
	}
	return p, nil
}

func (p *PubSub) launch(ctx context.Context, h *home, java, jar string) error {
	return launch(1, func(ports []int) error {
		p.Addr = addr(ports[0])
		p.proc = &process{home: h, spec: spec{
			name: "Pub/Sub emulator",
			argv: []string{
				java, "-Xms64m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + h.path,
				"-jar", jar, "--host=127.0.0.1", fmt.Sprintf("--port=%d", ports[0]),
			},
			dir: h.path, env: h.env(),
			stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			ready: p.ready,
		}}
		if err := p.proc.start(ctx); err != nil {
			return err
		}
		p.PID = p.proc.pid()
		return nil
	})
}

// ready succeeds once the emulator lists its topics.
func (p *PubSub) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr+"/v1/projects/ready/topics", http.NoBody)
	return replies(req, err, "the list of topics")
}
