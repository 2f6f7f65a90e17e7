package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store/ops"
)

// probed is a sink whose probe fails.
type probed struct{ err error }

func (p probed) Deliver(context.Context, broker.Batch) []error { return nil }

func (p probed) Info() broker.Info {
	return broker.Info{Name: "b", Probe: func(context.Context, []string) ([]error, error) { return nil, p.err }}
}

// A broker that denies access is told from one that does not answer.
func TestDestinationsSayWhetherTheBrokerAnswers(t *testing.T) {
	for want, err := range map[string]error{
		"the broker denies access: ":  broker.Outage(errors.New("not allowed"), "ACCESS_DENIED", ""),
		"the broker does not answer:": broker.Outage(errors.New("refused"), "", ""),
	} {
		d := admin.Destinations(probed{err}, func(context.Context) ([]string, error) { return nil, nil })
		found, err := d.Examine(t.Context(), ops.ExamineRequest{})
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].What, want) {
			t.Errorf("%+v, %v, want %q", found, err, want)
		}
	}
}
