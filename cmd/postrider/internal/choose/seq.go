package choose

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// SeqArgs demands exact record numbers, or at least one when exact is 0.
func SeqArgs(exact int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || (exact > 0 && len(args) != exact) {
			return exit.Usagef("give the number of the record (SEQ of `postrider dead list`)")
		}
		return nil
	}
}

// After reads --after of a list of records; "" is 0.
func After(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, exit.Usagef("after is %s: give the number of a record", redact.Word(text))
	}
	return n, nil
}

// Seqs reads the numbers of records.
func Seqs(args []string) ([]int64, error) {
	seqs := make([]int64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return nil, exit.Usagef("%s is not a record number: give SEQ of `postrider dead list`", redact.Word(arg))
		}
		seqs[i] = n
	}
	return seqs, nil
}
