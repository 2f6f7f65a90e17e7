package testserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// Patroni is the directory in CacheDir that holds Patroni and etcd.
const Patroni = "patroni-3.0"

// patroniPostgres is the version that Patroni runs: Debian's, which has pg_basebackup
// and pg_rewind.
const patroniPostgres = "15"

// PatroniTree returns the directory that "make servers ALL=1" fills with Patroni,
// etcd, Python and the libraries that they were built for.
func PatroniTree() (string, error) {
	missing := &MissingError{Server: Patroni, Fix: "make servers ALL=1"}
	cache, err := CacheDir()
	if err != nil {
		return "", missing
	}
	tree := filepath.Join(cache, Patroni)
	if !isFile(filepath.Join(tree, "usr/bin/patroni")) || !isFile(filepath.Join(tree, "usr/bin/etcd")) {
		return "", missing
	}
	return tree, nil
}

// Cluster is a PostgreSQL cluster that Patroni runs in synchronous mode. One etcd holds
// the leader's lock. A dead leader's lock expires after 20 s, the shortest time that
// Patroni allows.
type Cluster struct {
	Etcd    *Etcd
	Members []*Member
}

// Etcd is a running etcd with one member.
type Etcd struct {
	Server

	Addr string // for clients
}

// Member is one Patroni and the PostgreSQL that it runs. Kill, Freeze and Thaw act on
// both, Restart starts Patroni, which then starts PostgreSQL.
type Member struct {
	Server

	Name string
	Port int    // of PostgreSQL
	Dir  string // holds data/, patroni.yml and server.log

	api    string // host:port of Patroni's REST interface
	frozen []int
}

// LaunchCluster starts etcd and the given number of nodes in temporary directories. It
// waits until one node leads, another confirms its commits, and all others follow. ctx
// bounds the start; end the cluster with Close.
func LaunchCluster(ctx context.Context, nodes int) (*Cluster, error) {
	tree, err := PatroniTree()
	if err != nil {
		return nil, err
	}
	bin, err := PostgresBin(patroniPostgres)
	if err != nil {
		return nil, err
	}
	for _, tool := range []string{"pg_basebackup", "pg_rewind", "pg_controldata"} {
		if !isFile(filepath.Join(bin, tool)) {
			return nil, &MissingError{Server: tool + " of PostgreSQL " + patroniPostgres, Fix: "make servers"}
		}
	}
	c := &Cluster{}
	if c.Etcd, err = launchEtcd(ctx, tree); err != nil {
		return nil, err
	}
	for i := range nodes {
		n, err := launchMember(ctx, tree, bin, fmt.Sprintf("node%d", i+1), c.Etcd.Addr)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.Members = append(c.Members, n)
		if err := c.AwaitWhole(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func launchEtcd(ctx context.Context, tree string) (*Etcd, error) {
	user, err := lookupAccount("nobody")
	if err != nil {
		return nil, err
	}
	h, err := newHome("", user)
	if err != nil {
		return nil, err
	}
	e := &Etcd{}
	err = launch(2, func(ports []int) error {
		e.Addr = addr(ports[0])
		client, peer := "http://"+e.Addr, "http://"+addr(ports[1])
		lib := filepath.Join(tree, "lib")
		e.proc = &process{home: h, spec: spec{
			name: "etcd", dir: h.path, env: h.env(), stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			argv: []string{
				filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(tree, "usr/bin/etcd"),
				// With the newer interface Patroni 3.0 loses its place when etcd is killed.
				"--enable-v2=true", "--name", "etcd", "--data-dir", filepath.Join(h.path, "data"),
				"--listen-client-urls", client, "--advertise-client-urls", client,
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "etcd=" + peer,
			},
			ready: func(ctx context.Context) error {
				_, err := ask(ctx, http.MethodGet, client+"/health", nil)
				return err
			},
		}}
		err := e.proc.start(ctx)
		e.PID = e.proc.pid()
		return err
	})
	if err != nil {
		h.remove()
		return nil, err
	}
	return e, nil
}

func launchMember(ctx context.Context, tree, bin, name, etcd string) (*Member, error) {
	user, err := lookupAccount("postgres", "nobody")
	if err != nil {
		return nil, err
	}
	h, err := newHome("", user)
	if err != nil {
		return nil, err
	}
	n := &Member{Name: name, Dir: h.path}
	if _, err = h.mkdir("sock", 0o700); err != nil {
		return nil, err
	}
	err = launch(2, func(ports []int) error {
		n.Port, n.api = ports[0], addr(ports[1])
		config, err := h.write("patroni.yml", n.config(bin, etcd))
		if err != nil {
			return err
		}
		n.proc = &process{home: h, spec: spec{
			name: "Patroni " + name, dir: h.path, env: h.env(),
			argv: []string{filepath.Join(tree, "usr/bin/python3"), filepath.Join(tree, "usr/bin/patroni"), config},
			// PostgreSQL is not a child of Patroni; Patroni stops it before it exits.
			stop: syscall.SIGTERM, deathSig: syscall.SIGTERM,
			ready: func(ctx context.Context) error {
				_, err := ask(ctx, http.MethodGet, "http://"+n.api+"/health", nil)
				return err
			},
		}}
		err = n.proc.start(ctx)
		n.PID = n.proc.pid()
		return err
	})
	if err != nil {
		h.remove()
		return nil, err
	}
	return n, nil
}

func (m *Member) config(bin, etcd string) []string {
	at := addr(m.Port)
	return []string{
		"scope: proof", "name: " + m.Name,
		"restapi: {listen: '" + m.api + "', connect_address: '" + m.api + "'}",
		"etcd: {host: '" + etcd + "'}",
		"bootstrap:",
		"  dcs:",
		"    ttl: 20", "    loop_wait: 2", "    retry_timeout: 5", "    synchronous_mode: true", "    primary_start_timeout: 0",
		"    postgresql:",
		"      use_pg_rewind: true", "      use_slots: true",
		"      parameters: {max_connections: 200, max_wal_size: 512MB, shared_buffers: 64MB, wal_keep_size: 256MB}",
		"  initdb: [{encoding: UTF8}, {locale: C}, data-checksums]",
		"  pg_hba: ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust', 'local all all trust']",
		"postgresql:",
		"  listen: '" + at + "'", "  connect_address: '" + at + "'",
		"  data_dir: '" + filepath.Join(m.Dir, "data") + "'", "  bin_dir: '" + bin + "'",
		"  pgpass: '" + filepath.Join(m.Dir, "pgpass") + "'",
		"  authentication:",
		"    superuser: {username: postgres}", "    replication: {username: replicator}",
		"  parameters: {unix_socket_directories: '" + filepath.Join(m.Dir, "sock") + "', log_line_prefix: '%m [%p] %d ', timezone: UTC}",
	}
}

// postmaster returns the pid of the node's PostgreSQL, 0 if it does not run.
func (m *Member) postmaster() int {
	b, err := os.ReadFile(filepath.Join(m.Dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Base(exe) != "postgres" {
		return 0 // the pid of a killed server, which another process has now
	}
	return pid
}

// halt suspends Patroni, PostgreSQL and all their processes, in this order, and
// returns PostgreSQL's suspended processes.
func (m *Member) halt() ([]int, error) {
	if err := m.proc.freeze(); err != nil {
		return nil, err
	}
	pid := m.postmaster()
	if pid == 0 {
		return nil, nil
	}
	_ = suspend(pid)
	all := append([]int{pid}, descendants(pid)...)
	for _, p := range all[1:] {
		_ = suspend(p) // an ended process is fine
	}
	return all, nil
}

// Kill ends Patroni and PostgreSQL with SIGKILL, as a dying machine would.
func (m *Member) Kill() error {
	all, err := m.halt()
	if err != nil {
		return err
	}
	for _, pid := range all {
		killPID(pid)
	}
	m.frozen = nil
	return errors.Join(m.proc.kill(), awaitGone(all))
}

// Freeze suspends Patroni and PostgreSQL: connections stay open but get no reply.
func (m *Member) Freeze() (err error) {
	m.frozen, err = m.halt()
	return err
}

// Thaw ends Freeze.
func (m *Member) Thaw() error {
	for _, pid := range m.frozen {
		_ = resume(pid)
	}
	m.frozen = nil
	return m.proc.thaw()
}

// Alive reports whether the node's Patroni runs.
func (m *Member) Alive() bool {
	m.proc.mu.Lock()
	defer m.proc.mu.Unlock()
	return m.proc.cmd != nil && !m.proc.goneLocked()
}

// Query runs SQL on this node, whatever its role.
func (m *Member) Query(ctx context.Context, sql string) ([][]string, error) {
	return wire.Postgres(ctx, addr(m.Port), "postgres", "postgres", sql)
}

// Leads reports whether the node takes writes and has the leader's lock.
func (m *Member) Leads(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := ask(ctx, http.MethodGet, "http://"+m.api+"/primary", nil)
	return err == nil
}

// Leader returns the node that leads, nil if none does.
func (c *Cluster) Leader(ctx context.Context) *Member {
	for _, n := range c.Members {
		if n.Alive() && n.frozen == nil && n.Leads(ctx) {
			return n
		}
	}
	return nil
}

// URL returns a URL with all nodes, for applications that survive a failover. Parameters
// are appended unchanged.
func (c *Cluster) URL(parameters string) string {
	hosts := make([]string, len(c.Members))
	for i, n := range c.Members {
		hosts[i] = addr(n.Port)
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable" + parameters
}

// Switchover makes the node that confirms the leader's commits the leader, and waits
// for Patroni's reply.
func (c *Cluster) Switchover(ctx context.Context) error {
	leader := c.Leader(ctx)
	if leader == nil {
		return errors.New("testserver: switch over: no node leads")
	}
	_, err := ask(ctx, http.MethodPost, "http://"+leader.api+"/switchover", map[string]string{"leader": leader.Name})
	return err
}

// seenMember is one node as Patroni sees it.
type seenMember struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	State    string `json:"state"`
	Timeline int    `json:"timeline"`
}

// whole returns an error unless every node runs, one leads and the others stream.
func (c *Cluster) whole(ctx context.Context) error {
	leader := c.Leader(ctx)
	if leader == nil {
		return errors.New("no node leads")
	}
	b, err := ask(ctx, http.MethodGet, "http://"+leader.api+"/cluster", nil)
	if err != nil {
		return err
	}
	var seen struct{ Members []seenMember }
	if err := json.Unmarshal(b, &seen); err != nil {
		return fmt.Errorf("%w in %q", err, b)
	}
	running, synchronous, timeline := 0, 0, 0
	for _, m := range seen.Members {
		if m.Role == "leader" {
			timeline = m.Timeline
		}
	}
	for _, m := range seen.Members {
		if (m.State == "running" || m.State == "streaming") && m.Timeline == timeline {
			running++
		}
		if m.Role == "sync_standby" {
			synchronous++
		}
	}
	if running < len(c.Members) || synchronous == 0 && len(c.Members) > 1 {
		return fmt.Errorf("%+v", seen.Members)
	}
	rows, err := leader.Query(ctx, "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication WHERE state = 'streaming'")
	if err != nil {
		return err
	}
	if len(c.Members) > 1 && (rows[0][0] != strconv.Itoa(len(c.Members)-1) || rows[0][1] != "1") {
		return fmt.Errorf("%s standbys stream, %s of them synchronously", rows[0][0], rows[0][1])
	}
	return nil
}

// AwaitWhole waits until one node leads, another confirms its commits, and all started
// nodes follow.
func (c *Cluster) AwaitWhole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.whole(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("testserver: the Patroni cluster is not whole: %w\n%s", err, c.logs())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *Cluster) logs() string {
	var b strings.Builder
	for _, n := range c.Members {
		fmt.Fprintf(&b, "end of the log of %s:\n%s\n", n.Name, n.proc.logTail(0))
	}
	return b.String()
}

// Close ends all nodes and etcd and removes their directories.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Members {
		if n.Alive() { // a test cluster has no data to keep
			errs = append(errs, n.Kill())
		}
		errs = append(errs, n.Server.Close())
	}
	return errors.Join(append(errs, c.Etcd.Close())...)
}

// ask sends a request and returns the body of a successful reply.
func ask(ctx context.Context, method, url string, body any) ([]byte, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, in)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("testserver: %s %s: %s: %s", method, url, resp.Status, b)
	}
	return b, nil
}
