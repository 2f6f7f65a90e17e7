package promises

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxhttp"
	"github.com/postrider/postrider/internal/inboxwork"
)

func account(r *http.Request) string { return r.Header.Get("Account") }

// post sends a request of the caller ann with a key and returns the answer.
func post(h http.Handler, key, body string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Account", "ann")
	if key != "" {
		r.Header.Set(inboxhttp.KeyHeader, key)
	}
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(r *http.Response) string {
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

func replayed(r *http.Response) bool { return r.Header.Get(inboxhttp.ReplayedHeader) == "true" }

// insertOrder makes an effect and answers with the number of effects.
func insertOrder(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var n int
	_, err = tx.ExecContext(r.Context(), "INSERT INTO effect VALUES ('order', 1)")
	if err := errors.Join(err, tx.QueryRowContext(r.Context(), "SELECT count(*) FROM effect").Scan(&n)); err != nil {
		return err
	}
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
	switch string(body) {
	case "refuse":
		w.WriteHeader(http.StatusPaymentRequired)
	case "later":
		w.WriteHeader(http.StatusTooManyRequests)
	case "large":
		_, _ = w.Write(make([]byte, 2000))
	case "fail":
		return errors.New("no such thing")
	default:
		w.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(w, "order %d", n)
	return nil
}

// TestIdempotencyKey: one effect and one answer per key, caller and request.
//
// Promises: E
func TestIdempotencyKey(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		h := inboxhttp.New(in.Inbox, consumer.SQL(db, dialectOf(in, db)), account, insertOrder, &inboxhttp.Options{MaxAnswer: 1000})
		bob := func(r *http.Request) { r.Header.Set("Account", "bob") }
		for i, c := range []struct {
			key, body string
			change    []func(*http.Request)
			status    int
			again     bool
			text      string
			effects   int
		}{
			{key: `"a"`, body: "x", status: 201, text: "order 1", effects: 1},
			{key: `"a"`, body: "x", status: 201, again: true, text: "order 1", effects: 1},
			{key: `a`, body: "x", status: 201, again: true, text: "order 1", effects: 1},
			{key: `"a"`, body: "y", status: 422, text: "another request", effects: 1},
			{key: `"a"`, body: "y", change: []func(*http.Request){bob}, status: 201, text: "order 2", effects: 2},
			{key: `"a"`, body: "x", status: 201, again: true, text: "order 1", effects: 2},
			{key: `"r"`, body: "refuse", status: 402, text: "order 3", effects: 3},
			{key: `"r"`, body: "refuse", status: 402, again: true, text: "order 3", effects: 3},
			{key: `"l"`, body: "later", status: 429, text: "order 4", effects: 3},
			{key: `"f"`, body: "fail", status: 500, text: "may be repeated", effects: 3},
			{key: `"b"`, body: "large", status: 500, text: "may be repeated", effects: 3},
			{key: `"l"`, body: "x", status: 201, text: "order 4", effects: 4}, // its key is free
			{body: "x", status: 201, text: "order 5", effects: 5},
			{body: "x", status: 201, text: "order 6", effects: 6},
		} {
			r := post(h, c.key, c.body, c.change...)
			got := text(r)
			if r.StatusCode != c.status || replayed(r) != c.again || !strings.Contains(got, c.text) {
				t.Errorf("%d: %s %s: %d, replayed %v, %s", i, c.key, c.body, r.StatusCode, replayed(r), got)
			}
			if r.StatusCode == 201 && r.Header.Get("Location") != "/orders/"+strings.TrimPrefix(c.text, "order ") {
				t.Errorf("%d: %s %s: location %s", i, c.key, c.body, r.Header.Get("Location"))
			}
			if n := count(t, db, "SELECT count(*) FROM effect"); n != c.effects {
				t.Errorf("%d: %s %s: %d effects, want %d", i, c.key, c.body, n, c.effects)
			}
		}
	})
}

// TestIdempotencyKeyInProgress: while the first request runs on PostgreSQL, through
// database/sql and pgx, a second one gets 409 with Retry-After, and later the answer.
func TestIdempotencyKeyInProgress(t *testing.T) {
	url := postgres18(t)
	db := openSQL(t, "pgx", url)
	in := inboxDB(t, db, dialect.Postgres)
	inside, leave := make(chan struct{}), make(chan struct{})
	wait := func(w http.ResponseWriter) error {
		inside <- struct{}{}
		<-leave
		_, err := w.Write([]byte("done"))
		return err
	}
	for name, h := range map[string]http.Handler{
		"sql": inboxhttp.New(in.Inbox, consumer.SQL(db, dialect.Postgres), account, func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error { return wait(w) }, nil),
		"pgx": inboxhttp.New(in.Inbox, consumer.Pgx(pgxPool(t, url)), account, func(w http.ResponseWriter, _ *http.Request, _ pgx.Tx) error { return wait(w) }, nil),
	} {
		first := make(chan *http.Response, 1)
		go func() { first <- post(h, name, "x") }()
		<-inside
		for _, body := range []string{"x", "y"} {
			r := post(h, name, body)
			if r.StatusCode != http.StatusConflict || r.Header.Get("Retry-After") != "1" {
				t.Errorf("%s: in progress: %d, Retry-After %q", name, r.StatusCode, r.Header.Get("Retry-After"))
			}
		}
		leave <- struct{}{}
		if r := <-first; r.StatusCode != 200 || replayed(r) {
			t.Errorf("%s: the first: %d %s", name, r.StatusCode, text(r))
		}
		if r := post(h, name, "x"); r.StatusCode != 200 || !replayed(r) || text(r) != "done" {
			t.Errorf("%s: afterwards: %d", name, r.StatusCode)
		}
	}
}

// TestIdempotencyKeyThroughCuts cuts the connection before and after each call to the
// server, including the commit: a repetition has one effect and its answer, and no client
// got an answer without an effect.
//
// Promises: E
func TestIdempotencyKeyThroughCuts(t *testing.T) {
	_, file := sqlite(t)
	for _, c := range []struct {
		name, driver, dsn string
		dialect           dialect.Dialect
	}{
		{"postgres", "pgx", postgres18(t), dialect.Postgres},
		{"sqlite", "sqlite", "file:" + file + "?_txlock=immediate&_pragma=busy_timeout(10000)", dialect.SQLite},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, cut := cuttable(t, c.driver, c.dsn)
			in := inboxDB(t, db, c.dialect)
			h := inboxhttp.New(in.Inbox, consumer.SQL(db, c.dialect), account, insertOrder, nil)
			cuts, unknown := 0, 0
			for n, more := 0, true; more; n++ {
				for _, after := range []bool{false, true} {
					key := fmt.Sprintf("%d-%v", n, after)
					before := count(t, db, "SELECT count(*) FROM effect")
					cut.arm(n, after)
					first := post(h, key, "x")
					if more = cut.disarm(); more {
						cuts++
					}
					there := count(t, db, "SELECT count(*) FROM effect") - before
					if more && first.StatusCode < 500 || !more && first.StatusCode != 201 {
						t.Errorf("call %d, cut after it %v: answered with %d", n, after, first.StatusCode)
					}
					again := post(h, key, "x")
					// The server may notice the cut late: until then the first request runs.
					for give := time.Now().Add(10 * time.Second); again.StatusCode == 409 && time.Now().Before(give); {
						again = post(h, key, "x")
					}
					if want := fmt.Sprint("order ", before+1); again.StatusCode != 201 || text(again) != want || replayed(again) != (there == 1) {
						t.Errorf("call %d, cut after it %v: repetition: %d, replayed %v, want %s", n, after, again.StatusCode, replayed(again), want)
					}
					if more && there == 1 {
						unknown++
					}
					if now := count(t, db, "SELECT count(*) FROM effect") - before; now != 1 {
						t.Errorf("call %d, cut after it %v: %d effects", n, after, now)
					}
				}
			}
			// begin, claim, insert, select, keep, commit: cut before and after.
			if cuts != 12 || unknown != 1 {
				t.Errorf("%d cuts, %d of them lost the reply to a commit; want 12, 1", cuts, unknown)
			}
		})
	}
}

// TestOnceResult: a duplicate gets the first result, even an empty one. An effect without
// a result is an error.
//
// Promises: E
func TestOnceResult(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		for id, answer := range map[string][]byte{"full": []byte("\x00\xff answer"), "empty": {}} {
			m := placed
			m.ID = id
			for i := range 3 {
				got, fresh, err := in.OnceResult(t.Context(), db, m, func(*sql.Tx) ([]byte, error) {
					if i > 0 {
						t.Error("the effect ran again")
					}
					return answer, nil
				})
				if err != nil || fresh != (i == 0) || !bytes.Equal(got, answer) {
					t.Errorf("%s, time %d: %q, fresh %v, %v", id, i, got, fresh, err)
				}
			}
		}
		large := placed
		large.ID = "large"
		_, _, err := in.OnceResult(t.Context(), db, large, func(*sql.Tx) ([]byte, error) { return make([]byte, inbox.MaxResult+1), nil })
		if err == nil || count(t, db, "SELECT count(*) FROM "+inboxTable(in, db)+" WHERE message_id = 'large'") != 0 {
			t.Errorf("a result above the limit: %v", err)
		}
		if err := in.Once(t.Context(), db, placed, func(*sql.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, _, err := in.OnceResult(t.Context(), db, placed, nil); !errors.Is(err, inbox.ErrNoResult) {
			t.Errorf("an effect that kept no result: %v", err)
		}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if err := in.KeepResult(t.Context(), tx, "nobody", nil); err == nil {
			t.Error("a result without a claim was kept")
		}
		if err := in.KeepResult(t.Context(), tx, "full", nil); err == nil {
			t.Error("a second result was kept")
		}
	})
}

func TestOnceResultPgx(t *testing.T) {
	url := postgres18(t)
	in := inboxDB(t, openSQL(t, "pgx", url), dialect.Postgres)
	for i := range 2 {
		got, fresh, err := inbox.OnceResultPgx(context.Background(), in.Inbox, pgxPool(t, url), placed, func(pgx.Tx) ([]byte, error) { return []byte("answer"), nil })
		if err != nil || fresh != (i == 0) || string(got) != "answer" {
			t.Errorf("time %d: %q, fresh %v, %v", i, got, fresh, err)
		}
	}
}

func inboxTable(in *inboxwork.Inbox, db *sql.DB) string {
	if dialectOf(in, db) == dialect.SQLite {
		return "postrider_inbox"
	}
	return "postrider.inbox"
}
