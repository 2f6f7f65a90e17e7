package daemon

import (
	"errors"
	"fmt"
	"testing"
)

// TestGather: a reason that several topics share is reported once.
func TestGather(t *testing.T) {
	var (
		topics  []string
		missing []error
	)
	for i := range 8 {
		topics = append(topics, fmt.Sprintf("t%d", i))
		missing = append(missing, fmt.Errorf("queue %q does not exist: create-queue t%d", topics[i], i))
	}
	topics = append(topics, "fine", "denied", "alone")
	missing = append(missing, nil, errors.New("not allowed"), errors.New("no name"))
	reasons, bad := gather(topics, missing)
	want := `queue "t0" does not exist: create-queue t0; the same holds for "t1", "t2", "t3", "t4", "t5" and 2 more` + "\nnot allowed\nno name"
	if got := errors.Join(reasons...); bad != 10 || got.Error() != want || !errors.Is(got, missing[0]) {
		t.Errorf("%d: %v", bad, got)
	}
	if reasons, bad := gather(topics[:1], []error{nil}); bad != 0 || len(reasons) != 0 {
		t.Errorf("%d: %v", bad, reasons)
	}
}
