package console

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/shell"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// command is the line for a shell that does what a page does. Words are quoted, and the flags
// that name the outbox and the pipe follow.
func (p *place) command(words ...string) string {
	line := commandWith(p.outbox.Flags, words...)
	if pipe := cmp.Or(p.pipe, p.defaultPipe()); p.pipe != "" || pipe != store.DefaultPipe {
		line += " --pipe " + shell.Word(pipe)
	}
	return line
}

// consumerCommand is command for the consumers' database, which knows no pipe.
func (p *place) consumerCommand(words ...string) string {
	return commandWith(cmp.Or(p.outbox.ConsumerFlags, p.outbox.Flags), words...)
}

func commandWith(flags string, words ...string) string {
	all := []string{"postrider"}
	for _, w := range words {
		all = append(all, shell.Word(w))
	}
	return strings.TrimSpace(strings.Join(all, " ") + " " + flags)
}

// matchFlags are the flags that select what a match selects.
func matchFlags(m *ops.Match) (words []string) {
	add := func(flag, value string) {
		if value != "" {
			words = append(words, flag, value)
		}
	}
	for _, seq := range m.Seqs {
		words = append(words, strconv.FormatInt(seq, 10))
	}
	for _, id := range m.IDs {
		add("--id", id)
	}
	add("--topic", m.Topic)
	add("--key", m.Key)
	add("--type", m.Type)
	add("--class", m.Class)
	add("--code", m.Code)
	add("--error", m.Error)
	if m.Lane != nil {
		add("--lane", strconv.Itoa(int(*m.Lane)))
	}
	if m.Versions != (ops.Versions{}) {
		text := strconv.FormatInt(m.Versions.First, 10)
		if m.Versions.Last != 0 {
			text += "-" + strconv.FormatInt(m.Versions.Last, 10)
		}
		add("--versions", text)
	}
	if !m.Since.IsZero() {
		add("--since", m.Since.Format(time.RFC3339Nano))
	}
	if !m.Until.IsZero() {
		add("--until", m.Until.Format(time.RFC3339Nano))
	}
	if m.All {
		words = append(words, "--all")
	}
	return words
}

// verb is the command of an act on records.
func verb(kind store.ActKind) []string {
	switch kind {
	case store.ActRetry, store.ActDiscard:
		return []string{"dead", string(kind)}
	case store.ActSkip, store.ActReplay, store.ActPause, store.ActResume:
	}
	return []string{string(kind)}
}
