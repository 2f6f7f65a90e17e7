package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/consumer"
	consumermetrics "github.com/postrider/postrider/consumer/metrics"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

const grafanaDir = "../../deploy/grafana"

// dashboard is what the tests read of a dashboard.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ Expr string }
		FieldConfig struct{ Defaults struct{ Unit string } }
	}
	Templating struct{ List []struct{ Name string } }
}

func dashboards(t *testing.T) (all []dashboard) {
	t.Helper()
	for _, name := range []string{"relay", "database", "consumer"} {
		data, err := os.ReadFile(filepath.Join(grafanaDir, "dashboards", "postrider-"+name+".json"))
		var d dashboard
		if err == nil {
			err = json.Unmarshal(data, &d)
		}
		if err != nil || d.UID != "postrider-"+name || len(d.Panels) < 10 {
			t.Fatalf("%s: %d panels, %v", name, len(d.Panels), err)
		}
		all = append(all, d)
	}
	return all
}

// TestDashboards: panels have a title, a unit and a place of their own, use the dashboard's
// variables, and show every series of the reference.
func TestDashboards(t *testing.T) {
	var exprs strings.Builder
	for _, d := range dashboards(t) {
		taken, ids, vars := map[[2]int]string{}, map[int]bool{}, map[string]bool{"__rate_interval": true}
		for _, v := range d.Templating.List {
			vars[v.Name] = true
		}
		for _, p := range d.Panels {
			if p.Title == "" || ids[p.ID] || p.Type != "row" && (p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
				t.Errorf("%s: panel %d %q: a title, an id of its own, a unit and a query are required", d.UID, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Errorf("%s: panel %q lies over %q", d.UID, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			for _, q := range p.Targets {
				exprs.WriteString(q.Expr + "\n")
				for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
					if !vars[m[1]] {
						t.Errorf("%s: panel %q: the variable %s is not one of the dashboard's", d.UID, p.Title, m[0])
					}
				}
			}
		}
	}
	series := regexp.MustCompile("(?m)^\\| `(postrider_[a-z_]+)`").FindAllStringSubmatch(readDoc(t, "reference/metrics.md"), -1)
	if len(series) < 50 {
		t.Fatalf("%d series", len(series))
	}
	for _, m := range series {
		if !regexp.MustCompile(m[1] + `(_bucket)?\{`).MatchString(exprs.String()) {
			t.Errorf("no panel shows %s", m[1])
		}
	}
}

// prometheus is a running server.
type prometheus struct {
	t   *testing.T
	url string
}

// startPrometheus starts Debian's Prometheus, which scrapes the targets every second.
func startPrometheus(t *testing.T, targets map[string]string) *prometheus {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		testserver.GiveUp(t, &testserver.MissingError{Server: "prometheus", Fix: "apt-get install prometheus"})
	}
	dir := t.TempDir()
	var config strings.Builder
	config.WriteString("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n")
	for job, address := range targets {
		fmt.Fprintf(&config, "  - {job_name: %s, static_configs: [{targets: [%q]}]}\n", job, address)
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 { // another process may take the port
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		_ = l.Close()
		var out safeBuffer
		cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
		p := &prometheus{t, "http://" + address}
		ended := false
		until(t, "Prometheus is ready", nil, func() bool {
			select {
			case <-done:
				ended = true
				return true
			default:
			}
			resp, err := http.Get(p.url + "/-/ready")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
		if !ended {
			return p
		}
		t.Logf("prometheus ended:\n%s", out.String())
	}
	t.Fatal("prometheus did not start")
	return nil
}

// query returns the samples of an expression that are numbers.
func (p *prometheus) query(expr string) (values []float64) {
	p.t.Helper()
	resp, err := http.PostForm(p.url+"/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %s, %v", expr, answer.Error, err)
	}
	var samples []struct{ Value [2]any }
	if err := json.Unmarshal(answer.Data.Result, &samples); err != nil {
		p.t.Fatalf("%s: %s: %v", expr, answer.Data.ResultType, err)
	}
	for _, s := range samples {
		if v, err := strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64); err == nil && v == v { // a quantile of no calls is not a number
			values = append(values, v)
		}
	}
	return values
}

// chosen puts values for the variables of a dashboard.
func chosen(expr string) string {
	return strings.NewReplacer("$__rate_interval", "1m", "$relay", ".*", "$pipe", ".*", "$consumer", ".*").Replace(expr)
}

// watchedConsumer is a consumer with a handler, its broker and its page of metrics.
func watchedConsumer(t *testing.T, db string) (send func(), page string) {
	t.Helper()
	st, err := open.Store(&open.Settings{Store: db})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	conn, dialect := st.Inbox()
	bus := membroker.New(nil)
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(conn, dialect), &consumer.Options{Name: "billing"})
	consumer.Handle(c, "order.placed", func(context.Context, *sql.Tx, map[string]int) error { return nil })
	if err := c.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	srv := httptest.NewServer(consumermetrics.Handler(c))
	t.Cleanup(func() {
		srv.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	n := 0
	return func() {
		n++
		m := postrider.JSON("orders", fmt.Sprint("o-", n%7), "order.placed", map[string]int{"n": n})
		m.ID, m.Time = fmt.Sprint("m-", n), time.Now()
		if errs := bus.Sink().Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
	}, strings.TrimPrefix(srv.URL, "http://")
}

// TestDashboardsShowARelay: Prometheus scrapes a relay with traffic, lag, a dead letter and an
// outage, and a consumer. The panels show the trouble while it lasts, and every query of
// every panel yields data.
func TestDashboardsShowARelay(t *testing.T) {
	proxy, err := faultproxy.New(testserver.SharedRedis(t, testserver.RedisNewest).Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	db := testserver.SharedPostgres(t, "18").Database(t)
	mustCLI(t, "", "migrate", "--store", db, "--lanes", "8")
	mustCLI(t, "", "migrate", "--store", db, "--partition")
	enqueue := func(topic, key string) {
		mustCLI(t, `{"topic":"`+topic+`","key":"`+key+`","type":"t","payload":{}}`+"\n", "enqueue", "--store", db)
	}
	routes := writeFile(t, "routes:\n  - {match: {topic: nowhere}, topic: \"{header:missing}\"}\n  - {topic: \"{topic}\"}\n")
	p := launch(t, "relay", "-c", routes, "--listen", "127.0.0.1:0", "--store", db, "--broker", "redis://"+proxy.Addr(), "--status-every", "200ms", "--audit-every", "1s")
	until(t, "the relay listens", p, func() bool { return listens.MatchString(p.said.String()) })
	address := listens.FindStringSubmatch(p.said.String())[1]
	send, page := watchedConsumer(t, db)
	prom := startPrometheus(t, map[string]string{"postrider": address, "billing": page})

	panels := map[string]string{} // what is not yet shown: expression by dashboard and panel
	exprs := map[string]string{}
	for _, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for i, q := range panel.Targets {
				name := fmt.Sprintf("%s: %s: %s %d", d.UID, panel.Type, panel.Title, i)
				if panels[name] != "" {
					t.Errorf("two panels are called %s", name)
				}
				panels[name], exprs[name] = chosen(q.Expr), chosen(q.Expr)
			}
		}
	}
	most := func(name string) (top float64) {
		if exprs[name] == "" {
			t.Fatalf("there is no panel %s", name)
		}
		for _, v := range prom.query(exprs[name]) {
			top = max(top, v)
		}
		return top
	}
	// Scrapes of a busy machine come late.
	soon := func(what string, done func() bool) {
		t.Helper()
		begun := time.Now()
		for !done() {
			if time.Since(begun) > 5*time.Minute {
				t.Fatalf("not within five minutes: %s\nno data in %v\n%s", what, panels, p.said)
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Logf("%s after %v", what, time.Since(begun).Round(time.Millisecond))
	}
	enqueue("nowhere", "a")
	soon("the dead letter is shown", func() bool { return most("postrider-relay: stat: Dead letters 0") == 1 })
	proxy.Cut(0)
	enqueue("orders", "b")
	soon("the outage is shown", func() bool { return most("postrider-relay: timeseries: Parts that are down 0") == 1 })
	soon("the lag is shown", func() bool {
		return most("postrider-relay: stat: Lag 0") > 0 && most("postrider-relay: stat: Pending 0") >= 1 && most("postrider-relay: timeseries: Lag by pipe 0") > 0
	})
	proxy.Restore()
	soon("the end of the outage is shown", func() bool {
		return most("postrider-relay: timeseries: Parts that are down 0") == 0 && most("postrider-relay: stat: Pending 0") == 0
	})
	soon("every panel has data", func() bool {
		enqueue("orders", "c")
		send()
		for name, expr := range panels {
			if len(prom.query(expr)) > 0 {
				delete(panels, name)
			}
		}
		return len(panels) == 0
	})
	for _, name := range slices.Sorted(maps.Keys(exprs)) {
		t.Logf("%-60s %v", name, prom.query(exprs[name]))
	}
	p.stop()
}
