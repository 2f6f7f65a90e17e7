package secret_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/secret"
)

// TestRotation: a changed file is read again, and what is wrong with it is said
// without saying what is in it.
func TestRotation(t *testing.T) {
	name := filepath.Join(t.TempDir(), "password")
	source := secret.File(name)
	for _, c := range []struct{ text, want string }{
		{"hunter2\n", "hunter2"},
		{"hunter3", "hunter3"},
		{" with blanks \r\n", " with blanks "},
		{"", ""},
		{"\n", ""},
		{"hunter4\nhunter5\n", ""},
		{"hunter6\x00", ""},
	} {
		if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := source(t.Context())
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter") || !errors.Is(err, secret.ErrUnreadable) || !strings.Contains(err.Error(), name)) {
			t.Errorf("%q: the error is %v", c.text, err)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := source(t.Context()); !errors.Is(err, secret.ErrUnreadable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
}

func TestEnv(t *testing.T) {
	source := secret.Env("POSTRIDER_TEST_SECRET")
	if _, err := source(t.Context()); !errors.Is(err, secret.ErrUnreadable) {
		t.Errorf("a variable that is not set: %v", err)
	}
	t.Setenv("POSTRIDER_TEST_SECRET", "hunter2")
	if got, err := source(t.Context()); got != "hunter2" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
