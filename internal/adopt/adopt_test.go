package adopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func table(d Dialect, columns ...Column) *Table {
	return &Table{Dialect: d, Schema: "shop", Name: "event", Kind: "table", Key: []string{columns[0].Name}, Columns: columns}
}

func events(d Dialect, state Column) *Table {
	return table(d, Column{Name: "id", Type: "bigint", Class: Number, Numbered: true}, Column{Name: "topic", Type: "text", Class: Text}, Column{Name: "payload", Type: "text", Class: Text}, state)
}

// Each spelling of a state is found, and an unknown word is refused by its name.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		name             string
		state            Column
		rows             []string
		pending, sent    []string
		handed, complain string
	}{
		{"lower case", Column{Name: "status", Class: Text, Default: "new"}, []string{"sent"}, []string{"new"}, []string{"sent"}, "postrider", ""},
		{"upper case", Column{Name: "state", Class: Text}, []string{"PENDING", "PUBLISHED"}, []string{"PENDING"}, []string{"PUBLISHED"}, "POSTRIDER", ""},
		{"separated", Column{Name: "Status", Class: Text}, []string{"In-Progress", "Un_sent", "Failed", "Dead Letter"}, []string{"Un_sent", "Failed"}, nil, "Postrider", ""},
		{"an enum without a word for it", Column{Name: "status", Class: Enum, Words: []string{"new", "done"}}, nil, []string{"new"}, []string{"done"}, "done", ""},
		{"an enum with it", Column{Name: "status", Class: Enum, Words: []string{"new", "done", "postrider"}}, nil, []string{"new"}, []string{"done"}, "postrider", ""},
		{"the default is pending", Column{Name: "status", Class: Text, Default: "fresh"}, []string{"sent"}, []string{"fresh"}, []string{"sent"}, "postrider", ""},
		{"failed, for good or not", Column{Name: "status", Class: Text}, []string{"new", "failed"}, nil, nil, "", `the meaning of "failed"`},
		{"unknown", Column{Name: "status", Class: Text}, []string{"new", "florp"}, nil, nil, "", `the meaning of "florp"`},
		{"numbers", Column{Name: "status", Class: Number}, []string{"0", "1"}, nil, nil, "", `the meaning of "0", "1"`},
		{"nothing pending", Column{Name: "status", Class: Text}, []string{"sent"}, nil, nil, "", "means pending"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Propose(events(Postgres, c.state), "", func(string) ([]string, error) { return c.rows, nil })
			if c.complain != "" {
				var r *RefusedError
				if !errors.As(err, &r) || r.Reason != UnknownLayout || !strings.Contains(err.Error(), c.complain) {
					t.Fatalf("error %v, want %q", err, c.complain)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := m.State; !slices.Equal(s.Pending, c.pending) || !slices.Equal(s.Sent, c.sent) || s.Handed != c.handed {
				t.Errorf("pending %q, sent %q, handed %q", s.Pending, s.Sent, s.Handed)
			}
		})
	}
}

// The trigger's text holds the mapping that undo and status read.
func TestRecord(t *testing.T) {
	for _, d := range []Dialect{Postgres, MySQL} {
		tab := events(d, Column{Name: "status", Type: "text", Class: Text, Default: "new"})
		m, err := Propose(tab, "", func(string) ([]string, error) { return nil, nil })
		if err != nil {
			t.Fatal(err)
		}
		m.Topic = Source{Value: "it's \\ a \"topic\"\n"}
		p, err := NewPlan(tab, m, Found{}, Options{Schema: "postrider", Mirror: d == Postgres, Actor: "ann"})
		if d == Postgres { // no value means sent
			if err == nil {
				t.Error("a mirror that can write nothing was planned")
			}
			p, err = NewPlan(tab, m, Found{}, Options{Schema: "postrider", Actor: "ann"})
		}
		if err != nil {
			t.Fatal(err)
		}
		r := recordIn(p.Install[0])
		if r == nil || r.Actor != "ann" || r.Mapping.Topic != m.Topic || r.Mapping.State.Handed != "postrider" {
			t.Errorf("%s: the record is %+v", d, r)
		}
	}
}

// A mapping that does not fit the table, or would copy a row for ever, is refused.
func TestMappingCheck(t *testing.T) {
	good := func() Mapping {
		return Mapping{Topic: Source{Value: "t"}, State: &State{Column: "status", Pending: []string{"new"}, Handed: "gone"}}
	}
	for name, change := range map[string]func(*Mapping){
		"no topic": func(m *Mapping) { m.Topic = Source{} }, "two sources": func(m *Mapping) { m.Key = Source{Column: "id", Value: "x"} },
		"no column": func(m *Mapping) { m.Key = Source{Column: "nope"} }, "no order": func(m *Mapping) { m.Order = []string{"nope"} },
		"no state": func(m *Mapping) { m.State.Column = "" }, "nothing pending": func(m *Mapping) { m.State.Pending = nil },
		"no handed": func(m *Mapping) { m.State.Handed = "" }, "handed is pending": func(m *Mapping) { m.State.Handed = "new" },
		"handed is in progress": func(m *Mapping) { m.State.InProgress = []string{"gone"} }, "set": func(m *Mapping) { m.State.Set = map[string]string{"nope": "1"} },
		"the end of a function": func(m *Mapping) { m.Payload = Source{SQL: "'" + dollar + "'"} },
	} {
		m := good()
		change(&m)
		var r *RefusedError
		if err := m.Check(events(Postgres, Column{Name: "status", Class: Text})); !errors.As(err, &r) || r.Reason != BadMapping || r.Fix == "" {
			t.Errorf("%s: error %v", name, err)
		}
	}
	m := good()
	if err := m.Check(events(Postgres, Column{Name: "status", Class: Text})); err != nil {
		t.Error(err)
	}
}

// MySQLError is an error as the drivers of MySQL and MariaDB have it.
type MySQLError struct{ Number uint16 }

func (e *MySQLError) Error() string { return fmt.Sprint("Error ", e.Number) }

// A command that meets another one's locks or changes tries again; any other error ends it.
func TestBlocked(t *testing.T) {
	for number, want := range map[uint16]bool{1020: true, 1062: true, 1205: true, 1213: true, 1142: false, 1146: false} {
		if got := blocked(fmt.Errorf("copy: %w", &MySQLError{number})); got != want {
			t.Errorf("error %d: blocked %v, want %v", number, got, want)
		}
	}
}

// A script that a person runs refuses to install the trigger while rows are left that the backfill has not copied.
func TestScriptLooksForMore(t *testing.T) {
	tab := events(Postgres, Column{Name: "status", Type: "text", Class: Text, Default: "new"})
	m, err := Propose(tab, "", func(string) ([]string, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(tab, m, Found{}, Options{Schema: "postrider"})
	if err != nil {
		t.Fatal(err)
	}
	text := p.Script()
	batch, check, install := strings.LastIndex(text, "WITH picked"), strings.Index(text, "RAISE EXCEPTION"), strings.Index(text, "CREATE TRIGGER")
	if check < batch || install < check {
		t.Errorf("the batch is at %d, the check at %d, the trigger at %d\n%s", batch, check, install, text)
	}
}
