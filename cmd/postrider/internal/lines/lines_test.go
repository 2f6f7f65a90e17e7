package lines

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/postrider/postrider"
)

// A pipe that says nothing must not keep an interrupt waiting.
func TestRunIsInterruptible(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, w := io.Pipe()
	defer w.Close()
	ended := make(chan error, 1)
	r := &Reader{Batch: 10, Write: func(context.Context, []postrider.Message) error { return nil }}
	go func() { ended <- r.Run(ctx, in) }()
	if _, err := w.Write([]byte(`{"topic":"t"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil || err.Error() != "interrupted" {
		t.Errorf("Run = %v, want interrupted", err)
	}
}

// A batch ends at its bytes too, and no line is read without an end.
func TestRunBoundsItsMemory(t *testing.T) {
	big := `{"topic":"t","payload_text":"` + strings.Repeat("x", 6<<20) + `"}` + "\n"
	largest, bytes := 0, 0
	r := &Reader{Batch: 1000, Write: func(_ context.Context, msgs []postrider.Message) error {
		largest = max(largest, len(msgs))
		for i := range msgs {
			bytes += len(msgs[i].Payload)
		}
		return nil
	}}
	if err := r.Run(t.Context(), strings.NewReader(strings.Repeat(big, 7))); err != nil {
		t.Fatal(err)
	}
	if largest > 3 || bytes != 7*6<<20 {
		t.Errorf("batches of up to %d messages and %d bytes in all, want at most 3 and all 7", largest, bytes)
	}
	err := r.Run(t.Context(), io.LimitReader(endless{}, MaxLine+1))
	if err == nil || !strings.Contains(err.Error(), "longer than 64 MiB") {
		t.Errorf("Run = %v, want an error about the line's length", err)
	}
}

// endless is a line that does not end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
