package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/schema"
)

// recorder is a transaction that notes what it is asked to execute.
type recorder struct {
	queries []string
	args    [][]any
	fail    string // statements that start with it fail
}

func (r *recorder) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	r.queries, r.args = append(r.queries, query), append(r.args, args)
	if r.fail != "" && strings.HasPrefix(query, r.fail) && len(r.queries) > 2 {
		return nil, errDisk
	}
	return driver.RowsAffected(1), nil
}

func (r *recorder) Commit() error   { return errors.New("the transaction is the caller's") }
func (r *recorder) Rollback() error { return errors.New("the transaction is the caller's") }

var errDisk = errors.New("disk full")

func TestInvalidMessageIsNamedBeforeAnyIO(t *testing.T) {
	good := postrider.Message{Topic: "orders.placed", Payload: []byte("{}")}
	limits := &outbox.Options{Limits: outbox.Limits{Payload: 3, HeaderBytes: 4}}
	for _, c := range []struct {
		name string
		opts *outbox.Options
		bad  postrider.Message
		want string
	}{
		{"no topic", nil, postrider.Message{}, `outbox: message 2 (topic ""): topic is empty`},
		{
			"payload", limits,
			postrider.Message{Topic: "t", Payload: []byte("four")},
			`outbox: message 2 (topic "t"): payload is 4 bytes, the limit is 3`,
		},
		{
			"headers", limits,
			postrider.Message{Topic: "t", Headers: map[string]string{"abc": "de"}},
			`outbox: message 2 (topic "t"): headers are 5 bytes, the limit is 4`,
		},
		{"zero byte", nil, postrider.Message{Topic: "t", Key: "a\x00b"}, `outbox: message 2 (topic "t"): key has a zero byte`},
		{
			"long topic", nil,
			postrider.Message{Topic: strings.Repeat("x", 300)},
			`outbox: message 2 (topic "` + strings.Repeat("x", 64) + `..."): topic is 300 bytes, the limit is 255`,
		},
		{
			"far future", nil,
			postrider.Message{Topic: "t", NotBefore: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)},
			`outbox: message 2 (topic "t"): not before is in the year 12026, which no database keeps`,
		},
		{
			"unencodable", nil, postrider.JSON("t", "k", "y", func() {}),
			`outbox: message 2 (topic "t"): invalid message: payload cannot be encoded: json: unsupported type: func()`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, d := range []dialect.Dialect{dialect.Postgres, dialect.SQLite} {
				tx := &recorder{}
				err := outbox.New(d, c.opts).Enqueue(t.Context(), tx, good, good, c.bad, good)
				var me *outbox.MessageError
				if !errors.As(err, &me) || me.Index != 2 || !errors.Is(err, postrider.ErrInvalid) {
					t.Fatalf("%v: got %#v, want a *MessageError of message 2", d, err)
				}
				if err.Error() != c.want {
					t.Errorf("%v: error\n got %s\nwant %s", d, err, c.want)
				}
				if len(tx.queries) > 0 {
					t.Errorf("%v: executed %q", d, tx.queries)
				}
			}
		})
	}
}

type beginner struct{ *recorder }

func (beginner) BeginTx(context.Context, *sql.TxOptions) (any, error) { return nil, nil }

// Promises: A
func TestPoolIsRefusedBeforeAnyIO(t *testing.T) {
	r := &recorder{}
	for name, tx := range map[string]outbox.Tx{
		"wrapper":            beginner{r},
		"unchecked wrapper":  outbox.Unchecked(beginner{r}),
		"unchecked pool":     outbox.Unchecked((*sql.DB)(nil)),
		"nil":                nil,
		"nil *sql.Tx":        (*sql.Tx)(nil),
		"unchecked nil":      outbox.Unchecked(nil),
		"unchecked database": outbox.Unchecked(&sql.DB{}),
	} {
		err := outbox.New(dialect.Postgres, nil).Enqueue(t.Context(), tx, postrider.Message{Topic: "t"})
		var nt *outbox.NotTxError
		if !errors.As(err, &nt) {
			t.Errorf("%s: got %v, want a *NotTxError", name, err)
		}
	}
	if len(r.queries) > 0 {
		t.Errorf("executed %q", r.queries)
	}
	if err := outbox.CheckTx(outbox.Unchecked(&sql.Tx{})); err != nil {
		t.Errorf("a *sql.Tx behind Unchecked is refused: %v", err)
	}
	if err := outbox.CheckTx(outbox.Unchecked(r)); err != nil {
		t.Errorf("a narrow interface behind Unchecked is refused: %v", err)
	}
}

func TestPostgresArrays(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 1001, time.FixedZone("x", 3600))
	msgs := []postrider.Message{
		{ID: "01890A5D-AC96-774B-BCCE-B302099A8057", Topic: `a"b\c,{}`, Key: "NULL", Payload: []byte{0, 0xff}, NotBefore: at, Version: 7},
		{Topic: "t", Type: "", Headers: map[string]string{"q": `"`}, SchemaVersion: 3},
	}
	tx := &recorder{}
	ids, err := outbox.New(dialect.Postgres, nil).EnqueueIDs(t.Context(), tx, msgs...)
	if err != nil {
		t.Fatal(err)
	}
	if ids[0] != "01890a5d-ac96-774b-bcce-b302099a8057" || len(ids[1]) != 36 {
		t.Errorf("ids %q", ids)
	}
	if msgs[1].ID != "" {
		t.Error("Enqueue changed its argument")
	}
	want := []any{
		"{" + ids[0] + "," + ids[1] + "}",
		`{"a\"b\\c,{}","t"}`, `{"NULL",""}`, `{"",""}`, []byte("\x00\xff"), `{"",""}`,
		`{"{}","{\"q\":\"\\\"\"}"}`, `{7,0}`, `{0,3}`, `{"2026-03-04T04:06:07.000002Z",NULL}`,
		`{1,3}`, `{2,0}`,
	}
	if !reflect.DeepEqual(tx.args[0], want) {
		t.Errorf("arguments\n got %q\nwant %q", tx.args[0], want)
	}
}

func TestChunks(t *testing.T) {
	msgs := slices.Repeat([]postrider.Message{{Topic: "t"}}, 10_001)
	big := slices.Repeat([]postrider.Message{{Topic: "t", Payload: make([]byte, 9<<20)}}, 3)
	for _, c := range []struct {
		name string
		d    dialect.Dialect
		msgs []postrider.Message
		want int // statements
	}{
		{"one", dialect.Postgres, msgs[:1], 1},
		{"full", dialect.Postgres, msgs[:10_000], 1},
		{"one more", dialect.Postgres, msgs, 2},
		{"bytes", dialect.Postgres, big, 3},
		{"sqlite full", dialect.SQLite, msgs[:99], 1},
		{"sqlite one more, in a savepoint", dialect.SQLite, msgs[:100], 4},
		{"mysql full", dialect.MySQL, msgs[:1000], 1},
		{"mysql one more, in a savepoint", dialect.MySQL, msgs[:1001], 4},
		{"none", dialect.Postgres, nil, 0},
	} {
		tx := &recorder{}
		if err := outbox.New(c.d, nil).Enqueue(t.Context(), tx, c.msgs...); err != nil {
			t.Fatal(err)
		}
		if len(tx.queries) != c.want {
			t.Errorf("%s: %d statements, want %d", c.name, len(tx.queries), c.want)
		}
	}
}

func TestSQLiteUndoesHalfACall(t *testing.T) {
	tx := &recorder{fail: "INSERT"}
	msgs := slices.Repeat([]postrider.Message{{Topic: "t"}}, 250)
	err := outbox.New(dialect.SQLite, nil).Enqueue(t.Context(), tx, msgs...)
	if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), `enqueue 250 messages (first topic "t")`) {
		t.Errorf("error %v", err)
	}
	if last := tx.queries[len(tx.queries)-1]; last != "ROLLBACK TO SAVEPOINT postrider_enqueue" {
		t.Errorf("last statement is %q", last)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		d    dialect.Dialect
		opts *outbox.Options
		want string
	}{
		{dialect.Postgres, nil, `INSERT INTO "postrider"."outbox" (`},
		{dialect.Postgres, &outbox.Options{Schema: `a"b`, Table: "c"}, `INSERT INTO "a""b"."c" (`},
		{dialect.SQLite, nil, `INSERT INTO "postrider_outbox" (`},
		{dialect.MySQL, nil, "INSERT INTO `postrider_outbox` (id, topic, `key`, "},
		{dialect.MySQL, &outbox.Options{Schema: "a`\"b", Table: "c"}, "INSERT INTO `a``\"b`.`c` ("},
	} {
		tx := &recorder{}
		if err := outbox.New(c.d, c.opts).Enqueue(t.Context(), tx, postrider.Message{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(tx.queries[0], c.want) {
			t.Errorf("statement %q, want the start %q", tx.queries[0], c.want)
		}
	}
}

// sealer turns payloads around, or refuses the topic "bad".
type sealer struct{ ids []string }

func (s *sealer) Seal(_ context.Context, m postrider.Message) (postrider.Message, error) {
	if s.ids = append(s.ids, m.ID); m.Topic == "bad" {
		return m, errDisk
	}
	m.Payload = slices.Clone(m.Payload)
	slices.Reverse(m.Payload)
	m.Payload = append(m.Payload, '!')
	m.Headers = map[string]string{"sealed": "yes"}
	return m, nil
}

func TestSealerComesBeforeTheTableAndItsLimits(t *testing.T) {
	for _, d := range []dialect.Dialect{dialect.Postgres, dialect.SQLite} {
		s, tx := &sealer{}, &recorder{}
		ob := outbox.New(d, &outbox.Options{Sealer: s, Limits: outbox.Limits{Payload: 4}})
		m := postrider.Message{Topic: "t", Payload: []byte("abc")}
		ids, err := ob.EnqueueIDs(t.Context(), tx, m)
		if err != nil || !slices.Equal(ids, s.ids) {
			t.Fatalf("%v: ids %q, the sealer saw %q, %v", d, ids, s.ids, err)
		}
		if got := tx.args[0]; !reflect.DeepEqual(got[4], []byte("cba!")) || got[6] != `{"sealed":"yes"}` || string(m.Payload) != "abc" {
			t.Errorf("%v: written %q, the message is %+v", d, got, m)
		}
		for _, bad := range []postrider.Message{
			{Topic: "bad"},
			{Topic: "t", Payload: []byte("abcd")},
			postrider.JSON("t", "", "", func() {}),
		} {
			var me *outbox.MessageError
			if err := ob.Enqueue(t.Context(), tx, m, bad); !errors.As(err, &me) || me.Index != 1 {
				t.Errorf("%v: topic %q: %v", d, bad.Topic, err)
			}
		}
		if len(tx.queries) != 1 {
			t.Errorf("%v: executed %q", d, tx.queries)
		}
	}
}

type door struct{ saw []string }

func (d *door) Check(m *postrider.Message) error {
	d.saw = append(d.saw, string(m.Payload))
	if m.Topic == "shut" {
		return &postrider.LimitError{Field: "topic", Reason: "has no route"}
	}
	return nil
}

// The door sees what is written, sealed, and before anything is.
// checker refuses one payload, which it sees as the caller wrote it.
type checker struct{ seen []string }

func (c *checker) Check(m *postrider.Message) error {
	c.seen = append(c.seen, string(m.Payload))
	if string(m.Payload) == "bad" {
		return &schema.InvalidError{Subject: m.Type, Version: 1, Reason: "no"}
	}
	return nil
}

func TestValidatorComesBeforeTheSealerAndTheTable(t *testing.T) {
	c := &checker{}
	ob := outbox.New(dialect.SQLite, &outbox.Options{Sealer: &sealer{}, Validator: c})
	tx := &recorder{}
	if err := ob.Enqueue(t.Context(), tx, postrider.Message{Topic: "t", Payload: []byte("good")}); err != nil {
		t.Fatal(err)
	}
	written := len(tx.queries)
	err := ob.Enqueue(t.Context(), tx, postrider.Message{Topic: "t", Payload: []byte("good")}, postrider.Message{Topic: "t", Type: "placed", Payload: []byte("bad")})
	var bad *outbox.MessageError
	var invalid *schema.InvalidError
	if !errors.As(err, &bad) || bad.Index != 1 || !errors.As(err, &invalid) || !errors.Is(err, postrider.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if len(tx.queries) != written || !slices.Equal(c.seen, []string{"good", "good", "bad"}) {
		t.Errorf("%d statements after %d, checked %q", len(tx.queries), written, c.seen)
	}
}

func TestDoorComesBehindTheSealerAndBeforeTheTable(t *testing.T) {
	d, tx := &door{}, &recorder{}
	ob := outbox.New(dialect.SQLite, &outbox.Options{Sealer: &sealer{}, Door: d})
	good := postrider.Message{Topic: "t", Payload: []byte("abc")}
	var me *outbox.MessageError
	if err := ob.Enqueue(t.Context(), tx, good, postrider.Message{Topic: "shut"}); !errors.As(err, &me) || me.Index != 1 || !errors.Is(err, postrider.ErrInvalid) || len(tx.queries) != 0 {
		t.Errorf("%v, executed %q", err, tx.queries)
	}
	if err := ob.Enqueue(t.Context(), tx, good); err != nil || d.saw[len(d.saw)-1] != "cba!" {
		t.Errorf("%v, the door saw %q", err, d.saw)
	}
}
