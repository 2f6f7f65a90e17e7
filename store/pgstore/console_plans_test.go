package pgstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// planner explains every statement of a pool, with its arguments, on its connection and
// in its transaction, before it is executed.
type planner struct {
	mu       sync.Mutex
	page     string
	explains map[string]*statement // by page and text
	order    []string
	failed   []string
}

// statement is one that a console sends, and what its execution read.
type statement struct {
	page, text string
	nodes      []node
}

// node is a step of a plan. What it returned is what all of its loops returned together.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Dropped  float64 `json:"Rows Removed by Filter"`
	Plans    []node
}

func (n *node) all() (nodes []node) {
	nodes = append(nodes, *n)
	for i := range n.Plans {
		nodes = append(nodes, n.Plans[i].all()...)
	}
	return nodes
}

// read is how many rows the node has met.
func (n *node) read() int64 { return int64((n.Rows + n.Dropped) * n.Loops) }

type explaining struct{}

var asks = regexp.MustCompile(`(?is)^\s*(--[^\n]*\n\s*)*(select|insert|update|delete|with|values)\b`)

func (p *planner) TraceQueryStart(ctx context.Context, c *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	p.explain(ctx, c, q.SQL, q.Args)
	return ctx
}

func (p *planner) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (p *planner) TraceBatchStart(ctx context.Context, c *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		p.explain(ctx, c, q.SQL, q.Arguments)
	}
	return ctx
}

func (p *planner) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (p *planner) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// explain executes a statement once more than the console does, and takes its effects back.
func (p *planner) explain(ctx context.Context, c *pgx.Conn, text string, args []any) {
	if ctx.Value(explaining{}) != nil || !asks.MatchString(text) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.explains[p.page+"\n"+text] != nil {
		return
	}
	for len(args) > 0 { // what pgx itself takes as the first argument
		_, mode := args[0].(pgx.QueryExecMode)
		_, formats := args[0].(pgx.QueryResultFormats)
		if !mode && !formats {
			break
		}
		args = args[1:]
	}
	begin, end := "BEGIN", "ROLLBACK"
	if c.PgConn().TxStatus() == 'T' {
		begin, end = "SAVEPOINT plan", "ROLLBACK TO plan; RELEASE plan"
	}
	ctx = context.WithValue(context.WithoutCancel(ctx), explaining{}, true)
	var plan []byte
	_, err := c.Exec(ctx, begin, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = c.QueryRow(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+text, append([]any{pgx.QueryExecModeDescribeExec}, args...)...).Scan(&plan)
	}
	if _, endErr := c.Exec(ctx, end, pgx.QueryExecModeSimpleProtocol); err == nil {
		err = endErr
	}
	var parsed []struct{ Plan node }
	if err == nil {
		err = json.Unmarshal(plan, &parsed)
	}
	if err != nil {
		p.failed = append(p.failed, fmt.Sprintf("%s: %v\n%s", p.page, err, text))
		return
	}
	p.explains[p.page+"\n"+text] = &statement{p.page, text, parsed[0].Plan.all()}
	p.order = append(p.order, p.page+"\n"+text)
}

// consolePages are what a console answers to people, below an outbox. KEY and SEQ are a dead
// letter's, ID is that of a message that was delivered.
const consolePages = `
lanes dead keys message pipes orders consumers doctor journal
?span=2d
?span=35d
dead?topic=t
dead?code=C1
dead?key=KEY
dead?error=no
dead?code=C1&topic=t
dead?after=SEQ
key?key=KEY
key?key=p7
find?q=ID
find?q=KEY
find?q=%23SEQ
message?seq=SEQ
message?id=ID
journal?by=ann
journal?act=retry
events
do/retry?all=1
do/retry?code=C1
do/retry?topic=t
do/retry?error=no
do/retry?seq=SEQ
do/discard?key=KEY
do/discard?seq=SEQ
do/skip?seq=SEQ
do/replay?topic=t
do/replay?key=p7
do/replay?id=ID&seq=1000
do/pause?key=KEY
do/pause?lane=1
do/pause-pipe?pipe=main
do/remove-pipe?pipe=main`

// counts are the pages and acts that count all records of a filter, and replays those that look for
// them in the whole outbox. No other page reads more than mostRead rows, whatever the tables hold.
var (
	counts  = regexp.MustCompile(`^do/(retry\?(all|code|topic|error)|discard$|retry$|replay\?(topic|key))`)
	replays = regexp.MustCompile(`^do/replay\?(topic|key)`)
)

const mostRead = 12_000

// No page and no act but the count before a replay, which holds no page, reads the outbox as a whole
// or sorts more than a page shows. What is set aside is read as a whole only to count what an act will touch.
func TestConsolePlans(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, 4)
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', 'p' || g % 500, 'm', '\x01' FROM generate_series(1, 60000) g`)
		if _, err := d.store("main").Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "seen", From: ops.FromNow, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(strings.Replace(manyParked, "SELECT 'main'", "SELECT 'seen'", 1), ";") {
			d.exec(text)
		}
		db := stdlib.OpenDBFromPool(d.pool)
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := inbox.New(dialect.Postgres, "billing", &inbox.Options{Schema: d.schema}).Migrate(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		p := &planner{explains: map[string]*statement{}}
		cfg := d.pool.Config()
		cfg.ConnConfig.Tracer = p
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		st := pgstore.New(pool, &pgstore.Options{Schema: d.schema, Pipe: "seen"})
		inboxes := &admin.Inboxes{DB: stdlib.OpenDBFromPool(pool), Dialect: dialect.Postgres, Schema: d.schema}
		c := console.New([]console.Outbox{{Name: "shop", Store: st, Office: st.Office(), Consumers: inboxes}}, &console.Options{
			Authenticate: func(*http.Request) (console.User, error) {
				return console.User{Name: "ann", Role: console.Admin}, nil
			},
		})
		defer c.Close()
		b := &reader{T: t, c: c, p: p}
		seq := d.count(`SELECT max(seq) FROM box.parked WHERE state = 'dead' AND captures`)
		key, id := d.text(fmt.Sprintf(`SELECT key FROM box.parked WHERE seq = %d`, seq)), d.text(`SELECT id::text FROM box.outbox WHERE seq = 1000`)
		fill := strings.NewReplacer("KEY", key, "SEQ", fmt.Sprint(seq), "ID", id)
		for _, page := range strings.Fields(consolePages) {
			b.get(fill.Replace(page))
		}
		b.act("do/pause", url.Values{"key": {key}})
		b.act("do/resume", url.Values{"key": {key}})
		b.act("do/pause-destination", url.Values{"destination": {"nowhere"}})
		b.act("do/resume-destination", url.Values{"destination": {"nowhere"}})
		b.act("do/pause-pipe", url.Values{"pipe": {"seen"}})
		b.act("do/resume-pipe", url.Values{"pipe": {"seen"}})
		b.act("do/retry", url.Values{"seq": {fmt.Sprint(seq)}})
		b.act("do/discard", url.Values{"code": {"C2"}, "counted": {"3500"}})
		b.act("do/retry", url.Values{"code": {"C1"}, "rate": {"0.001"}, "counted": {"3500"}})
		b.get("orders")
		order := d.text(`SELECT max(ask)::text FROM box.request WHERE kind = 'retry-many'`)
		b.get("order?id=" + order)
		b.act("do/cancel-order", url.Values{"id": {order}})
		b.act("payload", url.Values{"seq": {fmt.Sprint(seq - 4)}})
		c.Close()
		for _, failed := range p.failed {
			t.Errorf("not explained: %s", failed)
		}
		for _, name := range p.order {
			s := p.explains[name]
			for _, n := range s.nodes {
				if n.Type == "Seq Scan" && (n.Relation == "outbox" && !replays.MatchString(s.page) || n.Relation == "parked" && !counts.MatchString(s.page)) ||
					strings.HasSuffix(n.Type, "Sort") && n.read() > 5000 && !replays.MatchString(s.page) || n.read() > mostRead && !counts.MatchString(s.page) {
					t.Errorf("page %q: %s of %q reads %d rows\n%s", s.page, n.Type, n.Relation, n.read(), s.text)
				}
			}
		}
		t.Logf("PostgreSQL %s: %d statements", version, len(p.order))
	}
}

// reader is a person with a console.
type reader struct {
	*testing.T
	c     *console.Console
	p     *planner
	token string
}

func (b *reader) send(method, path string, form url.Values) string {
	b.Helper()
	b.p.mu.Lock()
	b.p.page = path
	b.p.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	if strings.HasPrefix(path, "events") {
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	req := httptest.NewRequestWithContext(ctx, method, "/o/shop/"+path, strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.AddCookie(&http.Cookie{Name: "postrider-form", Value: "cookie"})
	w := httptest.NewRecorder()
	b.c.ServeHTTP(w, req)
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code >= http.StatusBadRequest {
		b.Errorf("%s %s: status %d, error %v\n%s", method, path, w.Code, err, body)
	}
	return string(body)
}

var formToken = regexp.MustCompile(`name="token" value="([0-9a-f]{64})"`)

// get opens a page, again and again while it counts.
func (b *reader) get(path string) {
	b.Helper()
	for strings.Contains(b.send(http.MethodGet, path, nil), "have been counted") {
	}
}

func (b *reader) act(path string, form url.Values) {
	b.Helper()
	if b.token == "" {
		found := formToken.FindStringSubmatch(b.send(http.MethodGet, "do/pause?lane=1", nil))
		if found == nil {
			b.Fatal("no token in a form")
		}
		b.token = found[1]
	}
	form.Set("token", b.token)
	form.Set("reason", "to see its plan")
	b.send(http.MethodPost, path, form)
}
