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

// probed is a sink whose probe fails, or whose topics do.
type probed struct {
	err   error
	takes string
	topic error
}

func (p probed) Deliver(context.Context, broker.Batch) []error { return nil }

func (p probed) Info() broker.Info {
	return broker.Info{Name: "b", Takes: p.takes, Probe: func(context.Context, []string) ([]error, error) { return []error{p.topic}, p.err }}
}

// A broker that denies access is told from one that does not answer.
func TestDestinationsSayWhetherTheBrokerAnswers(t *testing.T) {
	for want, err := range map[string]error{
		"the broker denies access: ":  broker.Outage(errors.New("not allowed"), "ACCESS_DENIED", ""),
		"the broker does not answer:": broker.Outage(errors.New("refused"), "", ""),
	} {
		d := admin.Destinations(probed{err: err}, func(context.Context) ([]string, error) { return nil, nil })
		found, err := d.Examine(t.Context(), ops.ExamineRequest{})
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].What, want) {
			t.Errorf("%+v, %v, want %q", found, err, want)
		}
	}
}

// The fix names what has to be created as the broker does.
func TestDestinationsSayWhatToCreate(t *testing.T) {
	for takes, want := range map[string]string{"queue": "create the queue in b, or", "": "create the destination in b, or"} {
		d := admin.Destinations(probed{takes: takes, topic: errors.New("missing")}, func(context.Context) ([]string, error) { return []string{"orders"}, nil })
		found, err := d.Examine(t.Context(), ops.ExamineRequest{})
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].Fix, want) {
			t.Errorf("%+v, %v, want %q", found, err, want)
		}
	}
}
