package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/lab/brokers"
)

// The environment variables that make this program an endpoint. It appends each request's
// body as a line to the file before it replies.
const (
	endpointAddr = "PROOF_ENDPOINT_ADDR"
	endpointFile = "PROOF_ENDPOINT_FILE"
)

// beEndpoint serves until it is killed.
func beEndpoint() error {
	file, err := os.OpenFile(os.Getenv(endpointFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	server := &http.Server{Addr: os.Getenv(endpointAddr), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil && r.Method == http.MethodPost {
				_, err = file.Write(append(body, '\n')) // one write: all or none of the line
			}
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})}
	return server.ListenAndServe()
}

// openWebhook starts an endpoint as a process of its own.
func openWebhook() (*brokers.Broker, error) {
	dir, err := os.MkdirTemp("", "proof-endpoint")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	e := &endpoint{addr: "127.0.0.1:" + port, file: filepath.Join(dir, "requests")}
	if err := e.Restart(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &brokers.Broker{
		Name: webhook, Process: e, Close: func() { _ = e.Kill(); _ = os.RemoveAll(dir) },
		URL:   "http://" + e.addr + "/hook#unsigned=true&insecure=true&allow=127.0.0.1&ports=" + port,
		Make:  func(context.Context, brokers.Topic) error { return nil }, // it accepts every topic
		Count: func(context.Context, string) (int, error) { return e.count() },
		Read: func(_ context.Context, _ string, each func(brokers.Record)) error {
			_, err := e.lines(0, func(line []byte) { each(brokers.Record{Payload: line}) })
			return err
		},
	}, nil
}

// freePort returns a port below the range for clients: a client that dials a dead endpoint
// must neither take its port nor connect to itself.
func freePort() (string, error) {
	for range 100 {
		port := strconv.Itoa(12_000 + rand.IntN(20_000))
		if l, err := net.Listen("tcp4", "127.0.0.1:"+port); err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no free port")
}

// endpoint is the process and its file.
type endpoint struct {
	addr, file string
	cmd        *exec.Cmd

	at      int64 // the end of the counted lines
	counted int
}

// Restart starts the process and waits until it listens.
func (e *endpoint) Restart() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	e.cmd = exec.Command(self)
	e.cmd.Env = append(os.Environ(), endpointAddr+"="+e.addr, endpointFile+"="+e.file)
	e.cmd.Stderr = os.Stderr
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp4", e.addr)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("the endpoint does not listen: %w", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (e *endpoint) Kill() error {
	err := e.cmd.Process.Kill()
	_ = e.cmd.Wait() // it was killed
	return err
}

// Stop calls Kill: the file has complete lines only.
func (e *endpoint) Stop() error   { return e.Kill() }
func (e *endpoint) Freeze() error { return e.cmd.Process.Signal(syscall.SIGSTOP) }
func (e *endpoint) Thaw() error   { return e.cmd.Process.Signal(syscall.SIGCONT) }

// count adds the new lines to the last count.
func (e *endpoint) count() (int, error) {
	n := 0
	at, err := e.lines(e.at, func([]byte) { n++ })
	e.at, e.counted = at, e.counted+n
	return e.counted, err
}

// lines passes complete lines from a position on to each and returns the position after
// them.
func (e *endpoint) lines(from int64, each func([]byte)) (int64, error) {
	f, err := os.Open(e.file)
	if err != nil {
		return from, err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return from, err
	}
	for r := bufio.NewReaderSize(f, 1<<20); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return from, err
		}
		from += int64(len(line))
		each(bytes.TrimSuffix(line, []byte("\n")))
	}
}
