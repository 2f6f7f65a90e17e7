package choose

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// FilterFlags are the conditions of a filter. No value is split at commas: a key
// may have one.
func FilterFlags(fs *pflag.FlagSet, f *store.Filter) {
	fs.StringArrayVar(&f.Topics, "topic", nil, "only this topic, or every topic with this prefix and a star; repeatable")
	fs.StringArrayVar(&f.Types, "type", nil, "only this type, or prefix and star; repeatable")
	fs.StringArrayVar(&f.Keys, "key", nil, "only this key, or prefix and star; repeatable")
	fs.Var(&headerFlag{&f.Headers}, "header", "only messages with this header and value; repeated headers must all match")
}

// headerFlag reads NAME=VALUE, whose value may hold commas and equal signs.
type headerFlag struct{ to *map[string]string }

func (h *headerFlag) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("write NAME=VALUE")
	}
	if *h.to == nil {
		*h.to = map[string]string{}
	}
	(*h.to)[name] = value
	return nil
}

func (h *headerFlag) String() string { return "" }

func (h *headerFlag) Type() string { return "name=value" }

// From reads --from.
func From(text string, now time.Time, req *ops.AddPipe) error {
	switch text {
	case "":
		return exit.Usagef("missing start: give --from now, --from beginning, a time or an age such as 48h")
	case "now":
		req.From = ops.FromNow
		return nil
	case "beginning":
		req.From = ops.FromBeginning
		return nil
	}
	req.From = ops.FromTime
	if age, err := time.ParseDuration(text); err == nil && age > 0 {
		req.Time = now.Add(-age)
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return exit.Usagef("from is %s: use now, beginning, a time such as 2026-11-21T06:00:00Z, or an age such as 48h", redact.Word(text))
	}
	if t.After(now) {
		return exit.Usagef("from is %s, which is in the future: use now", text)
	}
	req.Time = t
	return nil
}
