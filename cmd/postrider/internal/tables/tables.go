// Package tables has the commands that change how an outbox keeps its messages: partitions
// and strict keys.
package tables

import (
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// Program is what the commands need of the program around them.
type Program struct {
	Open   func(*cobra.Command) (*open.Outbox, error)
	Actor  func() string
	Print  func(answer any, text func(w *tabwriter.Writer)) error
	NoArgs cobra.PositionalArgs // refuses arguments
	// Archives reports whether the settings of the outbox's relay archive rows before they are removed.
	Archives func(*cobra.Command) (bool, error)
}
