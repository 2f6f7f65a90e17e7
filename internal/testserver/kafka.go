package testserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// KafkaVersion is the version of the broker that "make servers" installs.
const KafkaVersion = "4.3.1"

// Kafka is a running single-node Kafka broker (KRaft), without authentication
// at Addr. It does not create topics automatically.
type Kafka struct {
	Server

	Addr      string // host:port for clients
	Secure    string // host:port of the other listener, with WithSASL
	ClusterID string
	Dir       string // holds data/ and server.log
}

// KafkaLibs returns the directory with the broker's jars.
func KafkaLibs() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	libs := filepath.Join(cache, "kafka-"+KafkaVersion, "libs")
	if !isFile(filepath.Join(libs, "kafka_2.13-"+KafkaVersion+".jar")) {
		return "", &MissingError{Server: "Kafka " + KafkaVersion, Fix: "make servers"}
	}
	return libs, nil
}

// StartKafka starts a broker for one test, which may kill it. It is stopped
// and removed when the test ends.
func StartKafka(tb TB, opts ...Option) *Kafka {
	tb.Helper()
	k, err := LaunchKafka(context.Background(), "", opts...)
	return owned(tb, k, err)
}

// LaunchKafka starts a broker in dir, which must be new, or in a temporary
// directory when dir is empty. ctx bounds the start; end the broker with Close.
func LaunchKafka(ctx context.Context, dir string, opts ...Option) (*Kafka, error) {
	libs, err := KafkaLibs()
	if err != nil {
		return nil, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &MissingError{Server: "Java (for Kafka)", Fix: "apt-get install default-jre-headless"}
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	k := &Kafka{ClusterID: clusterID(), Dir: h.path}
	if err := k.launch(ctx, h, java, libs, apply(opts)); err != nil {
		h.remove()
		return nil, err
	}
	return k, nil
}

func (k *Kafka) launch(ctx context.Context, h *home, java, libs string, o options) error {
	logConf, err := h.write("log4j2.xml", []string{
		`<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/></Console></Appenders>`,
		`<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>`,
	})
	if err != nil {
		return err
	}
	jvm := []string{java, "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	if o.throughput {
		jvm = []string{java, "-Xms1g", "-Xmx1g"}
	}
	jvm = append(jvm, "-XX:-UsePerfData", "-Djava.io.tmpdir="+h.path,
		"-Dlog4j2.configurationFile="+logConf, "-cp", filepath.Join(libs, "*"))
	conf := filepath.Join(h.path, "server.properties")
	k.proc = &process{home: h, spec: spec{
		name: "Kafka " + KafkaVersion,
		argv: append(slices.Clone(jvm), "kafka.Kafka", conf),
		dir:  h.path, env: h.env(),
		stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
		ready: k.ready,
	}}
	formatted := false
	return launch(3, func(ports []int) error {
		k.Addr = addr(ports[0])
		config := kafkaConfig(h.path, ports[0], ports[1], o)
		if o.sasl != nil {
			k.Secure = addr(ports[2])
			secure, err := o.sasl.kafka(h, k.Addr, k.Secure, ports[1])
			if err != nil {
				return err
			}
			config = append(config, secure...)
		}
		if _, err := h.write("server.properties", config); err != nil {
			return err
		}
		if formatted { // the first ports were in use, and the storage contains them
			k.ClusterID = clusterID()
		}
		formatted = true
		if err := kafkaFormat(ctx, h, jvm, conf, k.ClusterID); err != nil {
			return err
		}
		if err := k.proc.start(ctx); err != nil {
			return err
		}
		k.PID = k.proc.pid()
		return nil
	})
}

func kafkaFormat(ctx context.Context, h *home, jvm []string, conf, cluster string) error {
	args := append(slices.Clone(jvm[1:]), "kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted", "-t", cluster, "-c", conf)
	cmd := exec.CommandContext(ctx, jvm[0], args...)
	cmd.Dir, cmd.Env = h.path, h.env()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = sysProcAttr(h.user, syscall.SIGKILL)
	err := startCmd(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("testserver: Kafka format: %w\n%s", err, out.String())
	}
	return nil
}

// clusterID returns an id that a command line does not mistake for an option.
func clusterID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		if id := base64.RawURLEncoding.EncodeToString(b[:]); !strings.HasPrefix(id, "-") {
			return id
		}
	}
}

func kafkaConfig(dir string, port, controller int, o options) []string {
	p, c := strconv.Itoa(port), strconv.Itoa(controller)
	lines := []string{
		"process.roles=broker,controller",
		"node.id=1",
		"controller.quorum.bootstrap.servers=127.0.0.1:" + c,
		"listeners=PLAINTEXT://127.0.0.1:" + p + ",CONTROLLER://127.0.0.1:" + c,
		"advertised.listeners=PLAINTEXT://127.0.0.1:" + p,
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs=" + filepath.Join(dir, "data-"+c),
		"auto.create.topics.enable=false",
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=1",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"share.coordinator.state.topic.num.partitions=1",
		"group.initial.rebalance.delay.ms=0",
		"log.cleaner.dedupe.buffer.size=8388608",
		// A crashed broker can register again once its session expires.
		"broker.session.timeout.ms=3000",
		"broker.heartbeat.interval.ms=500",
	}
	if o.durable {
		lines = append(lines, "log.flush.interval.messages=1")
	}
	return append(lines, o.config...)
}

// ready succeeds once this broker replies and has registered with its controller, so
// that it can lead partitions.
func (k *Kafka) ready(ctx context.Context) error {
	if _, err := kafkaCall(ctx, k.Addr, 18, 0, nil); err != nil { // ApiVersions
		return err
	}
	// Metadata v4: an array of no topics, no automatic creation.
	body, err := kafkaCall(ctx, k.Addr, 3, 4, []byte{0, 0, 0, 0, 0})
	if err != nil {
		return err
	}
	// The throttle time, an array of brokers, then the cluster id.
	if len(body) < 8 || binary.BigEndian.Uint32(body[4:]) == 0 {
		return fmt.Errorf("broker at %s is not registered yet", k.Addr)
	}
	if !bytes.Contains(body, []byte(k.ClusterID)) {
		return fmt.Errorf("%s belongs to another cluster", k.Addr)
	}
	return nil
}

// kafkaCall sends one request and returns the body of the reply.
func kafkaCall(ctx context.Context, address string, key, version uint16, body []byte) ([]byte, error) {
	conn, err := wire.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	const client = "testserver"
	req := binary.BigEndian.AppendUint16(nil, key)
	req = binary.BigEndian.AppendUint16(req, version)
	req = binary.BigEndian.AppendUint32(req, 1) // correlation id
	req = binary.BigEndian.AppendUint16(req, uint16(len(client)))
	req = append(append(req, client...), body...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(req))), req...)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > 1<<20 || binary.BigEndian.Uint32(head[4:]) != 1 {
		return nil, fmt.Errorf("%w: reply of %d bytes", wire.ErrProtocol, size)
	}
	answer := make([]byte, size-4)
	_, err = io.ReadFull(conn, answer)
	return answer, err
}
