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

// ElasticMQVersion is the version of the server that "make servers" installs.
const ElasticMQVersion = "1.7.1"

// ElasticMQ is a running ElasticMQ, which has the API and the limits of Amazon SQS and
// accepts any credentials. With [Throughput] and without [Durable] it keeps its queues
// in memory and loses them when it is killed. A killed server restarts its sequence
// numbers, and no longer delivers a group's older messages in order.
type ElasticMQ struct {
	Server

	Addr   string // host:port
	Dir    string // holds server.log
	Writes bool   // messages are written before they are acknowledged, except for repetitions

	options options
}

// ElasticMQLibs returns the directory with the server's jars.
func ElasticMQLibs() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	libs := filepath.Join(cache, "elasticmq-"+ElasticMQVersion, "libs")
	if !isFile(filepath.Join(libs, "elasticmq-server_2.13-"+ElasticMQVersion+".jar")) {
		return "", &MissingError{Server: "ElasticMQ " + ElasticMQVersion, Fix: "make servers"}
	}
	return libs, nil
}

// LaunchElasticMQ starts a server in dir, or in a temporary directory when dir is
// empty. ctx bounds the start; end the server with Close.
func LaunchElasticMQ(ctx context.Context, dir string, opts ...Option) (*ElasticMQ, error) {
	libs, err := ElasticMQLibs()
	if err != nil {
		return nil, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &MissingError{Server: "Java (for ElasticMQ)", Fix: "apt-get install default-jre-headless"}
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	e := &ElasticMQ{Dir: h.path, options: apply(opts)}
	e.Writes = e.options.durable || !e.options.throughput
	if err := e.launch(ctx, h, java, libs); err != nil {
		h.remove()
		return nil, err
	}
	return e, nil
}

func (e *ElasticMQ) launch(ctx context.Context, h *home, java, libs string) error {
	conf := filepath.Join(h.path, "elasticmq.conf")
	e.proc = &process{home: h, spec: spec{
		name: "ElasticMQ " + ElasticMQVersion,
		argv: []string{
			java, "-Xms64m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
			"-Djava.io.tmpdir=" + h.path, "-Dconfig.file=" + conf, "-cp", filepath.Join(libs, "*"), "org.elasticmq.server.Main",
		},
		dir: h.path, env: h.env(),
		stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
		ready: e.ready,
	}}
	return launch(1, func(ports []int) error {
		e.Addr = addr(ports[0])
		lines := []string{
			`include classpath("application.conf")`,
			fmt.Sprintf(`node-address { protocol = http, host = "127.0.0.1", port = %d, context-path = "" }`, ports[0]),
			fmt.Sprintf(`rest-sqs { enabled = true, bind-hostname = "127.0.0.1", bind-port = %d, sqs-limits = strict }`, ports[0]),
			`rest-stats { enabled = false }`,
			`aws { region = us-east-1, accountId = 000000000000 }`,
		}
		if e.Writes { // a delay of 0 writes each message before it is acknowledged
			lines = append(lines, fmt.Sprintf(`messages-storage { enabled = true, uri = "jdbc:h2:%s;WRITE_DELAY=0" }`, filepath.Join(h.path, "queues")))
		}
		if _, err := h.write("elasticmq.conf", append(lines, e.options.config...)); err != nil {
			return err
		}
		if err := e.proc.start(ctx); err != nil {
			return err
		}
		e.PID = e.proc.pid()
		return nil
	})
}

// ready succeeds once the server lists its queues.
func (e *ElasticMQ) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.Addr+"/", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "AmazonSQS.ListQueues")
	return replies(req, nil, "ListQueues")
}
