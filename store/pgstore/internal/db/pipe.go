package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
)

// FindPipe reads the row of pipe $1.
const FindPipe = `SELECT to_jsonb(p)::text FROM {{schema}}.pipe p WHERE p.name = $1`

// Row is a row of the table pipe as JSON, so that a schema that lacks some of the columns
// can still be read, and then refused by its version.
type Row struct {
	Name        string            `json:"name"`
	CreatedAt   time.Time         `json:"created_at"` // distinguishes a pipe from a later one of the same name
	Topics      []string          `json:"topics"`
	Types       []string          `json:"types"`
	Keys        []string          `json:"keys"`
	Headers     map[string]string `json:"headers"`
	Paused      bool              `json:"paused"`
	PausedAt    *time.Time        `json:"paused_at"`
	PausedBy    string            `json:"paused_by"`
	PauseReason string            `json:"pause_reason"`

	Filter [][]byte `json:"-"` // the first four parameters of the function passes; nil: every message passes
}

// ParseRow reads a row; nil for a missing one.
func ParseRow(text *string) (*Row, error) {
	if text == nil {
		return nil, nil
	}
	p := &Row{}
	if err := json.Unmarshal([]byte(*text), p); err != nil {
		return nil, fmt.Errorf("row of table pipe: %w", err)
	}
	if p.Topics == nil && p.Types == nil && p.Keys == nil && p.Headers == nil {
		return p, nil
	}
	p.Filter = [][]byte{TextArray(p.Topics), TextArray(p.Types), TextArray(p.Keys), nil}
	headers, err := HeadersParam(p.Headers)
	if headers != nil {
		p.Filter[3] = []byte(*headers)
	}
	return p, err
}

// TextArray returns the text of an array of texts, nil (NULL) for an empty one.
func TextArray(texts []string) []byte {
	if len(texts) == 0 {
		return nil
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	b := []byte{'{'}
	for i, t := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), escape.Replace(t)...), '"')
	}
	return append(b, '}')
}

// HeadersParam returns the JSON of a filter's headers, nil (NULL) for an empty map.
func HeadersParam(headers map[string]string) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(headers)
	text := string(b)
	return &text, err
}

// LikeOf turns a filter's patterns into patterns of LIKE; GlobOf is its inverse.
func LikeOf(globs []string) []string {
	if len(globs) == 0 {
		return nil
	}
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	out := make([]string, 0, len(globs))
	for _, g := range globs {
		body, prefix := strings.CutSuffix(g, "*")
		like := escape.Replace(body)
		if prefix {
			like += "%"
		}
		out = append(out, like)
	}
	return out
}

// GlobOf turns patterns of LIKE into a filter's patterns.
func GlobOf(likes []string) []string {
	out := make([]string, 0, len(likes))
	for _, like := range likes {
		var b strings.Builder
		for i := 0; i < len(like); i++ {
			switch {
			case like[i] == '\\' && i+1 < len(like):
				i++
				b.WriteByte(like[i])
			case like[i] == '%':
				b.WriteByte('*')
			default:
				b.WriteByte(like[i])
			}
		}
		out = append(out, b.String())
	}
	return out
}

// TakePipe records the identity of the pipe. If the pipe was removed, or removed and created
// again, TakePipe fails for the instance boot that knew the former pipe and still has its
// state in memory. A later instance starts without that state.
func (o *Outbox) TakePipe(p *Row, boot string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.pipe
	switch {
	case p == nil && known == nil:
		return o.NoPipe("does not exist", fmt.Sprintf("check --pipe, or make it with `postrider pipe add %s --from now`", o.Pipe))
	case p == nil, known != nil && !known.CreatedAt.Equal(p.CreatedAt) && boot == o.boot:
		return o.NoPipe("was removed", "end this relay, or start it again if the pipe was created again")
	}
	if known != nil && !known.CreatedAt.Equal(p.CreatedAt) {
		if o.Renewed != nil {
			o.Renewed()
		}
	}
	o.pipe, o.boot = p, boot
	return nil
}

// NoPipe returns the error for a missing pipe.
func (o *Outbox) NoPipe(what, fix string) error {
	return &store.UnusableError{
		What: fmt.Sprintf("pipe %q of schema %q %s", o.Pipe, o.Schema, what), Fix: fix, Err: store.ErrNoPipe,
	}
}

// ThePipe returns the pipe of the last lease, or reads it. The filter of a pipe never
// changes.
func (o *Outbox) ThePipe(ctx context.Context, q Querier) (*Row, error) {
	o.mu.Lock()
	p := o.pipe
	o.mu.Unlock()
	if p != nil {
		return p, nil
	}
	var text string
	err := q.QueryRow(ctx, o.Render(FindPipe), o.Pipe).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, o.TakePipe(nil, "")
	}
	if err != nil {
		return nil, err
	}
	if p, err = ParseRow(&text); err != nil {
		return nil, err
	}
	return p, o.TakePipe(p, "")
}

// KnowsPipe reports whether the pipe was read.
func (o *Outbox) KnowsPipe() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pipe != nil
}
