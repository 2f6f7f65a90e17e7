package relay

import (
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// A lane that a person has paused is no trouble of the relay: the store tells of the pause.
func TestAPausedLaneIsNoTrouble(t *testing.T) {
	r := newRecorder(time.Second)
	r.tell(port.LanePaused{Lane: 1, Reason: port.PausedByPerson, On: true})
	if got := r.trouble(); len(got) > 0 || len(r.stats().PausedLanes) != 1 {
		t.Errorf("a pause by a person: %q, %v paused", got, r.stats().PausedLanes)
	}
	r.tell(port.LanePaused{Lane: 2, Reason: "too many keys", On: true})
	if got := r.trouble(); len(got) != 1 || got[0] != "1 lane is paused: too many keys are set aside" {
		t.Errorf("a lane at its cap: %q", got)
	}
	r.tell(port.LanePaused{Lane: 2, Reason: "too many keys"})
	if got := r.trouble(); len(got) > 0 {
		t.Errorf("after it continued: %q", got)
	}
}
