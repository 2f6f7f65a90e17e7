// Package secret reads credentials where they are kept, each time they are
// needed: what was changed in a file is used from the next connection on,
// without a restart. No error of this package repeats a secret.
package secret

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Source is where a secret comes from. It is safe for concurrent use.
type Source func(ctx context.Context) (string, error)

// ErrUnreadable is in the chain of every error of a Source of this package:
// whoever needed the secret has not said a word to anybody yet.
var ErrUnreadable = errors.New("the secret cannot be read")

// Value is a secret that never changes.
func Value(text string) Source {
	return func(context.Context) (string, error) { return text, nil }
}

// File reads the secret from a file of one line. Line ends behind it do not belong to it.
func File(name string) Source {
	return func(context.Context) (string, error) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		return OneLine(string(text), "the file "+name)
	}
}

// Env reads the secret from a variable of the environment.
func Env(name string) Source {
	return func(context.Context) (string, error) {
		text, ok := os.LookupEnv(name)
		if !ok {
			return "", fmt.Errorf("%w: the environment has no %s", ErrUnreadable, name)
		}
		return OneLine(text, "the variable "+name)
	}
}

// OneLine returns text without the line ends behind it. It is an error where that
// is empty or not one line: a certificate, say, that stands where a password was
// expected. from says where it came from.
func OneLine(text, from string) (string, error) {
	one := strings.TrimRight(text, "\r\n")
	if one == "" || strings.ContainsAny(one, "\r\n\x00") {
		return "", fmt.Errorf("%w: want one line from %s, got %d bytes", ErrUnreadable, from, len(text))
	}
	return one, nil
}
