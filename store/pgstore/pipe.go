package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// pipeRow is a row of the table pipe as JSON, so that a schema without some of
// the columns can still be read, and refused by its version.
type pipeRow struct {
	Name        string            `json:"name"`
	CreatedAt   time.Time         `json:"created_at"` // tells a pipe from a later one of the same name
	Topics      []string          `json:"topics"`
	Types       []string          `json:"types"`
	Keys        []string          `json:"keys"`
	Headers     map[string]string `json:"headers"`
	Paused      bool              `json:"paused"`
	PausedAt    *time.Time        `json:"paused_at"`
	PausedBy    string            `json:"paused_by"`
	PauseReason string            `json:"pause_reason"`

	filter [][]byte // the first four parameters of the function passes; nil: everything passes
}

func parsePipe(text *string) (*pipeRow, error) {
	if text == nil {
		return nil, nil
	}
	p := &pipeRow{}
	if err := json.Unmarshal([]byte(*text), p); err != nil {
		return nil, fmt.Errorf("row of table pipe: %w", err)
	}
	if p.Topics == nil && p.Types == nil && p.Keys == nil && p.Headers == nil {
		return p, nil
	}
	p.filter = [][]byte{textArray(p.Topics), textArray(p.Types), textArray(p.Keys), nil}
	headers, err := headersParam(p.Headers)
	if headers != nil {
		p.filter[3] = []byte(*headers)
	}
	return p, err
}

// textArray is the text of an array of texts, nil (NULL) if there are none.
func textArray(texts []string) []byte {
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

func headersParam(headers map[string]string) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(headers)
	text := string(b)
	return &text, err
}

// likeOf makes a pattern of LIKE, globOf takes it back.
func likeOf(globs []string) []string {
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

func globOf(likes []string) []string {
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

// takePipe notes which pipe this is. One that is gone, or has been made anew under
// the name, is another one for the instance boot that knew it: nothing that it
// holds in memory is its. A later instance has nothing in memory.
func (s *Store) takePipe(p *pipeRow, boot string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.pipe
	switch {
	case p == nil && known == nil:
		return s.noPipe("does not exist", fmt.Sprintf("check --pipe, or make it with `postrider pipe add %s --from now`", s.opts.Pipe))
	case p == nil, known != nil && !known.CreatedAt.Equal(p.CreatedAt) && boot == s.boot:
		return s.noPipe("was removed", "end this relay, or start it again if the pipe was made anew")
	}
	if known != nil && !known.CreatedAt.Equal(p.CreatedAt) {
		s.quiet = nil // nothing of what the other filter lets pass
	}
	s.pipe, s.boot = p, boot
	return nil
}

func (s *Store) noPipe(what, fix string) error {
	return &store.UnusableError{
		What: fmt.Sprintf("pipe %q of schema %q %s", s.opts.Pipe, s.opts.Schema, what), Fix: fix, Err: store.ErrNoPipe,
	}
}

// thePipe is the pipe as the last lease saw it, or asked for now. Its filter
// never changes.
func (s *Store) thePipe(ctx context.Context, q querier) (*pipeRow, error) {
	s.mu.Lock()
	p := s.pipe
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	var text string
	err := q.QueryRow(ctx, s.sql.pipeFind, s.opts.Pipe).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, s.takePipe(nil, "")
	}
	if err != nil {
		return nil, err
	}
	if p, err = parsePipe(&text); err != nil {
		return nil, err
	}
	return p, s.takePipe(p, "")
}

func (s *Store) knowsPipe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pipe != nil
}

// makePipe makes this store's pipe, from now, unless another was faster.
func (s *Store) makePipe(ctx context.Context) error {
	_, err := s.AddPipe(ctx, ops.AddPipe{Name: s.opts.Pipe, Actor: "relay"})
	if errors.Is(err, ops.ErrPipeExists) {
		return nil
	}
	return err
}
