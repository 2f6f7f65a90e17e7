package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
)

func TestInvalidPayloadsAreLoggedOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	now := time.Now()
	tell := invalidLog(slog.New(slog.NewTextHandler(&out, nil)), func() time.Time { return now })
	for range 100 {
		tell("r", &postrider.Message{Type: "a", Payload: []byte("secret")}, errors.New("no qty"))
	}
	tell("r", &postrider.Message{Type: "b"}, errors.New("no qty"))
	now = now.Add(time.Minute)
	tell("r", &postrider.Message{Type: "a"}, errors.New("no qty"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "type=a") || !strings.Contains(lines[0], "messages=1 ") || !strings.Contains(lines[2], "messages=100 ") || strings.Contains(out.String(), "secret") {
		t.Error(out.String())
	}
	for i := range 5000 {
		tell("r", &postrider.Message{Type: fmt.Sprint(i)}, errors.New("no"))
	}
}
