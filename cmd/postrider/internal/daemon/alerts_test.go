package daemon

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	consumermetrics "github.com/postrider/postrider/consumer/metrics"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

const alertsDir = "../../../../docs/alerts"

// promtool runs Prometheus's own tool, from the Debian package prometheus.
func promtool(t *testing.T, stdin io.Reader, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		testserver.GiveUp(t, &testserver.MissingError{Server: "promtool", Fix: "apt-get install prometheus"})
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdin = alertsDir, stdin
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestAlertRules(t *testing.T) {
	promtool(t, nil, "check", "rules", "postrider.rules.yml", "consumer.rules.yml")
	promtool(t, nil, "test", "rules", "postrider.rules_test.yml", "consumer.rules_test.yml")
}

// orderly is an outbox without rows to remove, and with one row held back.
type orderly struct{}

func (orderly) Prune(context.Context, ops.PruneRequest) (ops.Pruned, error) {
	return ops.Pruned{Held: ops.Held{Pipe: "main", Rows: 1, Bytes: 1}}, nil
}

func (orderly) Tidy(context.Context, ops.TidyRequest) (ops.Tidied, error) {
	return ops.Tidied{}, nil
}

func (orderly) Audit(context.Context, ops.AuditRequest) (ops.Books, error) {
	return ops.Books{At: time.Now()}, nil
}

func (orderly) Partitions(context.Context) (ops.Partitions, error) {
	return ops.Partitions{List: make([]ops.Partition, 3), Ahead: 2, Room: 3 * ops.LowRoom}, nil
}

func (o orderly) Tend(ctx context.Context, _ ops.TendRequest) (t ops.Tended, err error) {
	t.Partitions, err = o.Partitions(ctx)
	return t, err
}

// relayPage returns the series of a relay with retention, books and partitions.
func relayPage(t *testing.T) string {
	t.Helper()
	st := memstore.New(nil)
	r := relay.New(st, membroker.New(nil).Sink(), nil)
	m := newMetrics(st.Office().Admin, map[string]string{"pipe": "main"}, time.Second)
	m.of(r)
	m.wake = func() store.Wake { return store.Wake{Wanted: "log", Using: "log"} }
	keeper := newKeeper(t, orderly{}, nil)
	if _, err := keeper.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Look(t.Context(), ops.AuditRequest{}); err != nil {
		t.Fatal(err)
	}
	m.keep(keeper, map[string]string{"relay": "shop"})
	srv := httptest.NewServer(metricsHandler(seriesOf(m)))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	resp, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return string(body)
}

// Every series that a rule asks for is one that the relay serves.
func TestMetricsServeWhatTheRulesAsk(t *testing.T) {
	body := []byte(relayPage(t))
	rulesAskFor(t, "postrider.rules.yml", body)
	for _, want := range []string{`postrider_lane_lag_seconds{lane="63",pipe="main"} 0`, `postrider_delivery_errors_total{class="outage",pipe="main"} 0`} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("not served: %s", want)
		}
	}
	promtool(t, bytes.NewReader(body), "check", "metrics")
}

// rulesAskFor fails for each series that the rules name and page has not.
func rulesAskFor(t *testing.T, file string, page []byte) {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join(alertsDir, file))
	if err != nil {
		t.Fatal(err)
	}
	exprs := bytes.Join(regexp.MustCompile(`(?m)expr: .*$`).FindAll(rules, -1), nil)
	names := regexp.MustCompile(`postrider_[a-z_]+`).FindAll(exprs, -1)
	if len(names) < 8 {
		t.Fatalf("the rules name only %d series", len(names))
	}
	for _, name := range names {
		if !bytes.Contains(page, append([]byte("\n"), append(name, '{')...)) {
			t.Errorf("a rule asks for %s, which is not served", name)
		}
	}
}

// consumed is a consumer that has done something.
type consumed struct{}

func (consumed) Stats() consumer.Stats { return consumer.Stats{Consumer: "billing", Effects: 1} }

func (consumed) Status(context.Context) (inbox.Status, error) {
	return inbox.Status{At: time.Now(), LastClaim: time.Now(), FirstClaim: time.Now()}, nil
}

// consumerPage returns the series of a consumer.
func consumerPage(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	consumermetrics.Handler(consumed{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return w.Body.String()
}

// And every series that a rule about consumers asks for is one that they serve.
func TestConsumersServeWhatTheRulesAsk(t *testing.T) {
	body := consumerPage(t)
	rulesAskFor(t, "consumer.rules.yml", []byte(body))
	promtool(t, strings.NewReader(body), "check", "metrics")
}

func seriesOf(m *metrics) *prometheus.Registry {
	reg := newRegistry()
	register(reg, []*unit{{meter: m}})
	return reg
}
