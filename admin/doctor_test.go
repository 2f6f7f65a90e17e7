package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store/ops"
)

type doctor struct {
	found []ops.Finding
	err   error
}

func (d doctor) Examine(context.Context, ops.ExamineRequest) ([]ops.Finding, error) {
	return d.found, d.err
}

func TestExamineSaysWhyACheckIsSkipped(t *testing.T) {
	d, err := admin.Examine(t.Context(), ops.ExamineRequest{Only: []string{"lag", "consumer-dead"}}, doctor{found: []ops.Finding{{Check: "lag"}}})
	if err != nil || d.OK != 1 || d.Skipped != 1 || d.Findings[0].Severity != ops.Skipped || d.Findings[0].Check != "consumer-dead" || d.Findings[0].What != "no consumer keeps an inbox in this database" {
		t.Errorf("%+v, %v", d, err)
	}
	var unknown *admin.UnknownCheckError
	if _, err := admin.Examine(t.Context(), ops.ExamineRequest{Only: []string{"lags"}}, doctor{}); !errors.As(err, &unknown) || unknown.Check != "lags" {
		t.Errorf("an unknown check: %v", err)
	}
}

func TestExaminePutsTheWorstFirst(t *testing.T) {
	away := errors.New("away")
	d, err := admin.Examine(t.Context(), ops.ExamineRequest{},
		doctor{found: []ops.Finding{{Check: "a"}, {Check: "b", Severity: ops.Warning}, {Check: "c", Severity: ops.Critical}}},
		doctor{found: []ops.Finding{{Check: "d", Severity: ops.Critical}}, err: away})
	order := ""
	for _, f := range d.Findings {
		order += f.Check
	}
	if !errors.Is(err, away) || order != "cdba" || d.Worst != ops.Critical || d.Critical != 2 || d.Warning != 1 || d.OK != 1 {
		t.Errorf("%q, %+v, %v", order, d, err)
	}
	text, err := json.Marshal(d)
	var back admin.Diagnosis
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || back.Worst != ops.Critical || len(back.Findings) != 4 {
		t.Errorf("%s: %v", text, err)
	}
	if none, err := admin.Examine(t.Context(), ops.ExamineRequest{}); err != nil || none.Findings == nil || none.Worst != ops.OK {
		t.Errorf("%+v, %v", none, err)
	}
}
