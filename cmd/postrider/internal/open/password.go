package open

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/secret"
)

// commandTimeout is how long a password command may run.
const commandTimeout = 10 * time.Second

// password is what asks for the store's password at each connection; nil when
// the connection string, PGPASSWORD or a passfile has it.
func (s *Settings) password() (func(context.Context) (string, error), error) {
	switch {
	case s.PasswordFile != "" && s.PasswordCommand != "":
		return nil, exit.Usagef("--store-password-file and --store-password-command exclude each other")
	case s.PasswordFile != "":
		return secret.File(s.PasswordFile), nil
	case s.PasswordCommand != "":
		return func(ctx context.Context) (string, error) { return passwordOfCommand(ctx, s.PasswordCommand) }, nil
	}
	return nil, nil
}

// passwordOfCommand runs a command by the shell. Neither what it prints nor what
// it says on stderr gets into an error: both may be secret.
func passwordOfCommand(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.WaitDelay = time.Second
	text, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("the password command did not end within %s", commandTimeout)
	case errors.As(err, &exit):
		return "", fmt.Errorf("the password command failed: %s", exit.ProcessState)
	case err != nil:
		return "", err
	}
	return secret.OneLine(string(text), "the password command")
}
