// Package connect runs Debezium's PostgreSQL connector in a private Kafka Connect worker,
// for tests and benchmarks. It is installed by "make servers ALL=1".
package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// Version is the version of Debezium that "make servers ALL=1" installs.
const Version = "3.6.1.Final"

// plugin is the class of Debezium's connector for PostgreSQL.
const plugin = "io.debezium.connector.postgresql.PostgresConnector"

// startTimeout bounds the start of a worker or a connector on a busy machine.
const startTimeout = 3 * time.Minute

// Libs returns the directory with the jars of Kafka Connect and Debezium.
func Libs() (string, error) {
	cache, err := testserver.CacheDir()
	if err != nil {
		return "", err
	}
	libs := filepath.Join(cache, "debezium-"+Version, "libs")
	if _, err := os.Stat(filepath.Join(libs, "debezium-connector-postgres-"+Version+".jar")); err != nil {
		return "", &testserver.MissingError{Server: "Debezium " + Version, Fix: "make servers ALL=1"}
	}
	return libs, nil
}

// Worker is a running Kafka Connect worker in standalone mode.
type Worker struct {
	PID int
	Dir string // holds worker.log and the offsets
	URL string // of the REST interface

	cmd  *exec.Cmd
	done chan struct{} // closed once the process is reaped
}

// Launch starts a worker in dir, which must exist. The lines are added to its
// configuration. ctx bounds the start; end the worker with Close.
func Launch(ctx context.Context, dir, kafka string, jvm []string, lines ...string) (*Worker, error) {
	libs, err := Libs()
	if err != nil {
		return nil, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &testserver.MissingError{Server: "Java (for Debezium)", Fix: "apt-get install default-jre-headless"}
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	w := &Worker{Dir: dir, URL: "http://" + address, done: make(chan struct{})}
	files := map[string][]string{
		"log4j2.xml": {
			`<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/></Console></Appenders>`,
			`<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>`,
		},
		"worker.properties": append([]string{
			"bootstrap.servers=" + kafka,
			"listeners=" + w.URL,
			"offset.storage.file.filename=" + filepath.Join(dir, "offsets"),
			"offset.flush.interval.ms=1000",
			"plugin.discovery=only_scan",
			"key.converter=org.apache.kafka.connect.storage.StringConverter",
			"value.converter=org.apache.kafka.connect.converters.ByteArrayConverter",
		}, lines...),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(text, "\n")+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	out, err := os.Create(filepath.Join(dir, "worker.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args := append(append([]string{}, jvm...), "-XX:-UsePerfData", "-Djava.io.tmpdir="+dir,
		"-Dlog4j2.configurationFile="+filepath.Join(dir, "log4j2.xml"), "-cp", filepath.Join(libs, "*"),
		"org.apache.kafka.connect.cli.ConnectStandalone", filepath.Join(dir, "worker.properties"))
	w.cmd = exec.Command(java, args...)
	w.cmd.Dir, w.cmd.Stdout, w.cmd.Stderr = dir, out, out
	w.cmd.SysProcAttr = attributes()
	started := make(chan error)
	go func() { // the thread stays: a child with a death signal ends with the thread that forked it
		runtime.LockOSThread()
		err := w.cmd.Start()
		started <- err
		if err == nil {
			_ = w.cmd.Wait() // the log has the reason
			close(w.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("connect: start the worker: %w", err)
	}
	w.PID = w.cmd.Process.Pid
	if err := w.await(ctx, func(ctx context.Context) error { return w.call(ctx, http.MethodGet, "/connectors", nil, nil) }); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Put creates a connector, or gives it another configuration, and waits until its task runs.
func (w *Worker) Put(ctx context.Context, name string, config map[string]string) error {
	body, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := w.call(ctx, http.MethodPut, "/connectors/"+name+"/config", body, nil); err != nil {
		return err
	}
	return w.await(ctx, func(ctx context.Context) error { return w.Running(ctx, name) })
}

// Running returns an error unless the connector and its task run.
func (w *Worker) Running(ctx context.Context, name string) error {
	var status struct {
		Connector state
		Tasks     []state
	}
	if err := w.call(ctx, http.MethodGet, "/connectors/"+name+"/status", nil, &status); err != nil {
		return err
	}
	if len(status.Tasks) == 0 {
		return errors.New("connect: the connector has no task yet")
	}
	for _, s := range append(status.Tasks, status.Connector) {
		if s.State != "RUNNING" {
			return fmt.Errorf("connect: connector %s is %s: %.2000s", name, s.State, s.Trace)
		}
	}
	return nil
}

type state struct{ State, Trace string }

// Delete ends a connector. The worker keeps its offsets.
func (w *Worker) Delete(ctx context.Context, name string) error {
	return w.call(ctx, http.MethodDelete, "/connectors/"+name, nil, nil)
}

// Done is closed when the worker has ended.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Close ends the worker.
func (w *Worker) Close() error {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.done:
		return nil
	case <-time.After(30 * time.Second):
	}
	err := w.cmd.Process.Kill()
	<-w.done
	return err
}

// await tries until f succeeds, the worker ends or the time is over.
func (w *Worker) await(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-w.done:
			return fmt.Errorf("connect: the worker ended: %w\n%s", err, w.logTail())
		case <-ctx.Done():
			return fmt.Errorf("connect: %w: %w\n%s", ctx.Err(), err, w.logTail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *Worker) logTail() string {
	text, err := os.ReadFile(filepath.Join(w.Dir, "worker.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

func (w *Worker) call(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	address, err := url.JoinPath(w.URL, path)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("connect: %s %s: %s: %.1000s", method, path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// Router returns the configuration of a connector that reads table with Debezium's outbox
// event router. More settings are added by the caller.
func Router(database, table string) (map[string]string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, fmt.Errorf("connect: the database's URL is invalid: %w", err)
	}
	password, _ := u.User.Password()
	if password == "" {
		password = "unused"
	}
	return map[string]string{
		"connector.class":   plugin,
		"database.hostname": u.Hostname(), "database.port": u.Port(),
		"database.user": u.User.Username(), "database.password": password,
		"database.dbname": strings.TrimPrefix(u.Path, "/"),
		"plugin.name":     "pgoutput", "snapshot.mode": "no_data",
		"table.include.list": table,
		"transforms":         "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
	}, nil
}
