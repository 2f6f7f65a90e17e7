package choose

import (
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/store"
)

// maxLane is the last lane that an outbox can have.
const maxLane = 4095

var errLane = errors.New("a lane is a number from 0 to 4095")

// LaneFlag adds --lane, which sets *to to the lane; nil: it is not given.
func LaneFlag(fs *pflag.FlagSet, to **store.Lane, usage string) {
	fs.Var(&laneFlag{to}, "lane", usage)
}

type laneFlag struct{ to **store.Lane }

func (l *laneFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxLane {
		return errLane
	}
	lane := store.Lane(n)
	*l.to = &lane
	return nil
}

func (l *laneFlag) String() string {
	if l.to == nil || *l.to == nil {
		return ""
	}
	return strconv.Itoa(int(**l.to))
}

// Type is the word in the help.
func (*laneFlag) Type() string { return "int" }

// NotEmpty refuses flags that select, of any command, without a value: that of a variable of
// a script that is not set would select everything.
func NotEmpty(fs *pflag.FlagSet) error {
	for _, name := range []string{
		"id", "key", "type", "topic", "versions", "since", "until", "class", "code", "error", "consumer", "endpoint", "relay", "pipe", "schema", "archive",
	} {
		f := fs.Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		switch f.Value.Type() {
		case "stringSlice":
			values, _ = fs.GetStringSlice(name) // it is one
		case "stringArray":
			values, _ = fs.GetStringArray(name) // it is one
		}
		if len(values) == 0 || slices.Contains(values, "") {
			return exit.Usagef("--%s is empty: give it a value, or leave it out", name)
		}
	}
	return nil
}
