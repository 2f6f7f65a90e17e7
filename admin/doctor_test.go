package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
)

type doctor struct {
	found []store.Finding
	err   error
}

func (d doctor) Examine(context.Context, store.ExamineRequest) ([]store.Finding, error) {
	return d.found, d.err
}

func TestExaminePutsTheWorstFirst(t *testing.T) {
	away := errors.New("away")
	d, err := admin.Examine(t.Context(), store.ExamineRequest{},
		doctor{found: []store.Finding{{Check: "a"}, {Check: "b", Severity: store.Warning}, {Check: "c", Severity: store.Critical}}},
		doctor{found: []store.Finding{{Check: "d", Severity: store.Critical}}, err: away})
	order := ""
	for _, f := range d.Findings {
		order += f.Check
	}
	if !errors.Is(err, away) || order != "cdba" || d.Worst != store.Critical || d.Critical != 2 || d.Warning != 1 || d.OK != 1 {
		t.Errorf("%q, %+v, %v", order, d, err)
	}
	text, err := json.Marshal(d)
	var back admin.Diagnosis
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || back.Worst != store.Critical || len(back.Findings) != 4 {
		t.Errorf("%s: %v", text, err)
	}
	if none, err := admin.Examine(t.Context(), store.ExamineRequest{}); err != nil || none.Findings == nil || none.Worst != store.OK {
		t.Errorf("%+v, %v", none, err)
	}
}
