package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/internal/testserver/connect"
)

// lab has the servers and programs of a measurement.
type lab struct {
	*kafka
	engine
	broker  *testserver.Kafka
	dir     string
	self    string            // this program, for children
	shipped string            // the binary of cmd/postrider
	foreign map[string]string // programs of peers that are built apart
	missing map[string]error  // why a way cannot be started
	sample  string            // the file with the record that Postrider sends
	trials  int
}

func openLab(ctx context.Context, c config) (l *lab, err error) {
	l = &lab{missing: map[string]error{}, foreign: map[string]string{}}
	defer func() {
		if err != nil {
			l.end()
		}
	}()
	if l.self, err = os.Executable(); err != nil {
		return l, err
	}
	if l.dir, err = os.MkdirTemp("", "postrider-peers-"); err != nil {
		return l, err
	}
	root, module, err := folders(ctx)
	if err != nil {
		return l, err
	}
	say("building the shipped binary")
	built := filepath.Join(l.dir, "built")
	if err := goRun(ctx, root, []string{"CGO_ENABLED=0", "GOWORK="}, "build", "-trimpath", "-ldflags=-s -w", "-o", built, "./cmd/postrider"); err != nil {
		return l, err
	}
	if l.shipped, err = install(l.dir, built); err != nil {
		return l, err
	}
	l.sample = filepath.Join(l.dir, "sample.json")
	for name, from := range foreigners {
		if !slices.Contains(namesOf(ways(c.store, nil)), name) {
			continue
		}
		if l.foreign[name], err = from.build(ctx, module, l.dir); err != nil {
			l.missing[name] = err
		}
	}
	if _, err := connect.Libs(); err != nil {
		l.missing["debezium"] = err
	}
	if l.engine, err = startEngine(ctx, c); err != nil {
		return l, err
	}
	if l.broker, err = testserver.LaunchKafka(ctx, "", testserver.Throughput()); err != nil {
		return l, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(l.broker.Addr))
	if err != nil {
		return l, err
	}
	l.kafka = &kafka{addr: l.broker.Addr, pid: l.broker.PID, admin: kadm.NewClient(client), close: client.Close}
	return l, nil
}

func (l *lab) end() {
	if l.kafka != nil {
		l.kafka.close()
	}
	if l.broker != nil {
		_ = l.broker.Close()
	}
	if l.engine != nil {
		l.engine.stop()
	}
	if l.dir != "" {
		_ = os.RemoveAll(l.dir)
	}
}

// folders returns the root of the repository and this module's folder, with the go command
// that runs in either.
func folders(ctx context.Context) (root, module string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/postrider/postrider")
	cmd.Env = append(os.Environ(), "GOWORK=")
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("find the repository: run this inside of it: %w", err)
	}
	root = strings.TrimSpace(string(out))
	return root, filepath.Join(root, "bench", "peers"), nil
}

func goRun(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(string(out[max(0, len(out)-1000):])))
	}
	return nil
}

// open makes a database with the tables of a way, and a topic.
func (l *lab) open(ctx context.Context, w *way, n int) (*trial, error) {
	l.trials++
	t := &trial{lab: l, n: n, topic: fmt.Sprintf("%s-%d", w.name, l.trials)}
	if err := l.topic(ctx, t.topic); err != nil {
		return nil, err
	}
	if w.kind == client {
		return t, nil
	}
	if err := l.create(ctx, t, fmt.Sprintf("trial_%d", l.trials)); err != nil {
		return nil, err
	}
	if err := w.prepare(ctx, t); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: make its tables: %w", w.name, err), t.close(ctx))
	}
	return t, nil
}

// close removes the database and the topic.
func (t *trial) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err := t.admin.DeleteTopics(ctx, t.topic)
	if t.database == "" {
		return err
	}
	return errors.Join(err, t.drop(ctx, t))
}

// process is a running relay.
type process struct {
	pid  int
	stop func() error
	done <-chan struct{} // closed when it has ended
	said func() string
}

// launch starts a program that runs until SIGTERM.
func (l *lab) launch(ctx context.Context, path string, args ...string) (*process, error) {
	log, err := os.CreateTemp(l.dir, "log-*")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.dir, log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ended by a signal, or its log has the reason
		close(done)
	}()
	return &process{
		pid: cmd.Process.Pid, done: done,
		stop: func() error {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			select {
			case <-done:
			case <-time.After(time.Minute):
				_ = cmd.Process.Kill()
				<-done
			}
			return nil
		},
		said: func() string {
			text, _ := os.ReadFile(log.Name())
			return string(text[max(0, len(text)-1500):])
		},
	}, nil
}

// tuned are Postrider's best flags for throughput.
var tuned = []string{"--window", "4096", "--page", "1024"}

func migrate(ctx context.Context, t *trial) error {
	cmd := exec.CommandContext(ctx, t.shipped, "migrate", "--store", t.database)
	cmd.Dir = t.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	return nil
}

// install copies the binary as cp does. Of a file that was written in larger pieces, by a linker
// or at once, Linux maps as large pieces: the same program then has 12 to 35 MiB more.
func install(dir, built string) (path string, err error) {
	from, err := os.Open(built)
	if err != nil {
		return "", err
	}
	defer from.Close()
	path = filepath.Join(dir, "postrider")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	return path, errors.Join(err, to.Close())
}

// relay starts the shipped binary.
func relay(flags []string, parameters string) func(context.Context, *trial) (*process, error) {
	return func(ctx context.Context, t *trial) (*process, error) {
		args := append([]string{"relay", "--store", t.database, "--broker", "kafka://" + t.addr + parameters, "--listen", "127.0.0.1:0"}, flags...)
		return t.launch(ctx, t.shipped, args...)
	}
}

// child starts this program as one of the ways that it contains.
func child(name string) func(context.Context, *trial) (*process, error) {
	return func(ctx context.Context, t *trial) (*process, error) {
		return t.launch(ctx, t.self, "child", name, t.database, t.addr, t.topic)
	}
}

// produce starts a client that needs no database.
func produce(name string) func(context.Context, *trial) (*process, error) {
	return func(ctx context.Context, t *trial) (*process, error) {
		return t.launch(ctx, t.self, "child", name, fmt.Sprint(t.n), t.addr, t.topic, t.sample)
	}
}

func startDebezium(ctx context.Context, t *trial) (*process, error) {
	dir, err := os.MkdirTemp(t.dir, "connect-")
	if err != nil {
		return nil, err
	}
	w, err := connect.Launch(ctx, dir, t.addr, []string{"-Xms1g", "-Xmx1g"},
		"producer.compression.type=lz4", "producer.linger.ms=5", "producer.batch.size=1000000", "producer.acks=all")
	if err != nil {
		return nil, err
	}
	conf, err := connect.Router(t.database, "public.events")
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	for name, value := range map[string]string{
		"topic.prefix": "peers", "slot.name": slot(t.topic), "publication.name": "events", "publication.autocreate.mode": "disabled",
		"max.batch.size": "20000", "max.queue.size": "100000", "poll.interval.ms": "10", "skipped.operations": "u,d,t", "tombstones.on.delete": "false",
		"transforms.outbox.route.topic.replacement": t.topic,
	} {
		conf[name] = value
	}
	if err := w.Put(ctx, "outbox", conf); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &process{
		pid: w.PID, stop: w.Close, done: w.Done(),
		said: func() string {
			text, _ := os.ReadFile(filepath.Join(dir, "worker.log"))
			return string(text[max(0, len(text)-1500):])
		},
	}, nil
}
