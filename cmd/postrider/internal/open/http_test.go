package open

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndpointsThatWereRejected: a changed file of endpoints that could not be used is taken
// over when what it names is there, though the file itself stays as it is. Its fault is
// logged once.
func TestEndpointsThatWereRejected(t *testing.T) {
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "endpoints.yml"), filepath.Join(dir, "billing")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "endpoints:\n  - url: https://hooks.example.com/in\n    unsigned: true\n")
	synctest.Test(t, func(t *testing.T) {
		p, err := openWebhooks(&Settings{Format: "plain"}, file)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var text bytes.Buffer
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Watch(ctx, slog.New(slog.NewTextHandler(&text, nil))); close(done) }()
		defer func() { end(); <-done }()
		said := func(line string) int {
			time.Sleep(5 * hookLook)
			synctest.Wait()
			return strings.Count(text.String(), line)
		}
		write(file, "endpoints:\n  - url: https://hooks.example.com/in\n    secret_file: "+secret+"\n")
		if n := said("changed endpoints rejected"); n != 1 {
			t.Errorf("the fault was logged %d times:\n%s", n, &text)
		}
		write(secret, "whsec_"+strings.Repeat("QUJD", 11))
		if n := said("endpoints reloaded"); n != 1 {
			t.Errorf("with its secret there, the file was taken over %d times:\n%s", n, &text)
		}
	})
}
