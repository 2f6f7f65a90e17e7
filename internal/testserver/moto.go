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

// MotoVersion is the version of the server that "make servers" installs.
const MotoVersion = "5.2.5"

// Moto is a running moto, which speaks the APIs of Amazon SNS and SQS and delivers
// from topics to queues. It keeps everything in memory, accepts any credentials, draws
// sequence numbers at random, and fails a batch as a whole.
type Moto struct {
	Server

	Addr string // host:port
	Dir  string // holds server.log
}

// MotoAccount owns everything in a [Moto].
const MotoAccount = "123456789012"

// MotoLibs returns the directory with the server's Python modules.
func MotoLibs() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	libs := filepath.Join(cache, "moto-"+MotoVersion, "libs")
	if !isFile(filepath.Join(libs, "moto", "server.py")) {
		return "", &MissingError{Server: "moto " + MotoVersion, Fix: "make servers"}
	}
	return libs, nil
}

// motoProgram is moto's own server with one request at a time: its queues lose messages
// when requests for one run side by side. It computes a queue's attributes, which count
// all of its messages, at most five times a second, and not for each message.
const motoProgram = `
import io, sys, threading, time
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs.models import Queue
from werkzeug.serving import run_simple
compute = Queue.attributes.fget
def attributes(queue):
    at, known = getattr(queue, "computed", (0, None))
    if known is None or time.monotonic() - at > 0.2:
        known = compute(queue)
        queue.computed = time.monotonic(), known
    return dict(known)
Queue.attributes = property(attributes)
app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one(env, start):
    env["wsgi.input"] = io.BytesIO(env["wsgi.input"].read(int(env.get("CONTENT_LENGTH") or 0)))
    with lock:
        return list(app(env, start))
run_simple("127.0.0.1", int(sys.argv[1]), one, threaded=True)
`

// LaunchMoto starts a server in dir, or in a temporary directory when dir is
// empty. ctx bounds the start; end the server with Close.
func LaunchMoto(ctx context.Context, dir string) (*Moto, error) {
	libs, err := MotoLibs()
	if err != nil {
		return nil, err
	}
	python, err := Python()
	if err != nil {
		return nil, err
	}
	// A launcher of Python versions needs its user's environment, which servers do not have.
	real, err := exec.CommandContext(ctx, python, "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return nil, fmt.Errorf("testserver: find the interpreter of %s: %w", python, err)
	}
	h, err := newHome(dir, nil) // an interpreter may be in the directory of our own user
	if err != nil {
		return nil, err
	}
	m := &Moto{Dir: h.path}
	if err := m.launch(ctx, h, strings.TrimSpace(string(real)), libs); err != nil {
		h.remove()
		return nil, err
	}
	return m, nil
}

func (m *Moto) launch(ctx context.Context, h *home, python, libs string) error {
	return launch(1, func(ports []int) error {
		m.Addr = addr(ports[0])
		m.proc = &process{home: h, spec: spec{
			name: "moto " + MotoVersion,
			argv: []string{python, "-c", motoProgram, fmt.Sprint(ports[0])},
			dir:  h.path, env: append(h.env(), "PYTHONPATH="+libs, "PYTHONDONTWRITEBYTECODE=1"),
			stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			ready: m.ready,
		}}
		if err := m.proc.start(ctx); err != nil {
			return err
		}
		m.PID = m.proc.pid()
		return nil
	})
}

// ready succeeds once the server answers about itself.
func (m *Moto) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr+"/moto-api/", http.NoBody)
	return replies(req, err, "/moto-api/")
}
