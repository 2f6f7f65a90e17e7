package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/outbox"
)

// line is one message on stdin. Payload is any JSON value and travels as its
// own bytes; payload_text and payload_base64 are for other content.
type line struct {
	ID            string            `json:"id"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key"`
	Type          string            `json:"type"`
	Payload       json.RawMessage   `json:"payload"`
	PayloadText   *string           `json:"payload_text"`
	PayloadBase64 *string           `json:"payload_base64"`
	ContentType   string            `json:"content_type"`
	Headers       map[string]string `json:"headers"`
	Version       int64             `json:"version"`
	SchemaVersion int32             `json:"schema_version"`
	NotBefore     time.Time         `json:"not_before"`
}

func (l *line) message() (postrider.Message, error) {
	m := postrider.Message{
		ID: l.ID, Topic: l.Topic, Key: l.Key, Type: l.Type, ContentType: l.ContentType, Headers: l.Headers,
		Version: l.Version, SchemaVersion: l.SchemaVersion, NotBefore: l.NotBefore,
	}
	given := 0
	if l.Payload != nil {
		given++
		m.Payload = l.Payload
		if m.ContentType == "" {
			m.ContentType = "application/json"
		}
	}
	if l.PayloadText != nil {
		given++
		m.Payload = []byte(*l.PayloadText)
	}
	if l.PayloadBase64 != nil {
		given++
		data, err := base64.StdEncoding.DecodeString(*l.PayloadBase64)
		if err != nil {
			return m, errors.New("payload_base64 is not base64")
		}
		m.Payload = data
	}
	if given > 1 {
		return m, errors.New("give one of payload, payload_text and payload_base64")
	}
	return m, m.Validate()
}

func (a *app) enqueueCommand() *cobra.Command {
	var batch int
	cmd := &cobra.Command{
		Use:   "enqueue",
		Short: "Write messages from stdin, one JSON object per line",
		Long: "Each line is an object with topic (required), key, type, payload (any JSON value), payload_text\n" +
			"or payload_base64, content_type, headers, id, version, schema_version, not_before (RFC 3339).\n" +
			"Each batch of lines is one transaction. An error names its line; the batches before\n" +
			"it stay written, and the error has their number.",
		Example: `  echo '{"topic":"orders","key":"o-1","type":"order.placed","payload":{"qty":2}}' |
    postrider enqueue --store sqlite:shop.db`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if batch < 1 || batch > 10_000 {
				return exit.Usagef("batch is %d: use 1 to 10000", batch)
			}
			st, err := a.openStore()
			if err != nil {
				return err
			}
			defer st.Close()
			if err := open.Ready(cmd.Context(), st, a.schemaName()); err != nil {
				return err
			}
			e := &enqueuer{write: st.Enqueue, batch: batch}
			if err := e.run(cmd.Context(), a.in); err != nil {
				return fmt.Errorf("%w; %s", err, e.progress())
			}
			return a.print(map[string]int{"enqueued": e.written}, func(w *tabwriter.Writer) { output.Row(w, fmt.Sprintf("enqueued %d", e.written)) })
		},
	}
	cmd.Flags().IntVar(&batch, "batch", 500, "messages per transaction")
	return cmd
}

type enqueuer struct {
	write   func(context.Context, []postrider.Message) error
	batch   int
	msgs    []postrider.Message
	bytes   int   // of msgs
	lines   []int // line number of each message
	written int
	safe    int // last line whose batch is committed
}

// A batch also ends at so many bytes, and no line may be longer than maxLine:
// neither must fill the memory.
const (
	batchBytes = 16 << 20
	maxLine    = 64 << 20
)

// progress says what stays written after an error.
func (e *enqueuer) progress() string {
	switch e.written {
	case 0:
		return "nothing is written"
	case 1:
		return fmt.Sprintf("1 message up to line %d is written", e.safe)
	}
	return fmt.Sprintf("%d messages up to line %d are written", e.written, e.safe)
}

// inputLine is what one read of stdin brought.
type inputLine struct {
	text []byte
	err  error
}

func (e *enqueuer) run(ctx context.Context, in io.Reader) error {
	input := readLines(ctx, in)
	for n := 1; ; n++ {
		var l inputLine
		select {
		case l = <-input:
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		ended := errors.Is(l.err, io.EOF)
		if l.err != nil && !ended {
			return fmt.Errorf("line %d: cannot be read: %w", n, l.err)
		}
		if err := e.take(ctx, n, l.text); err != nil {
			return err
		}
		if ended {
			return e.flush(ctx)
		}
	}
}

// readLines reads on a goroutine of its own: a terminal or a pipe that says
// nothing must not keep an interrupt waiting. It ends with in or ctx.
func readLines(ctx context.Context, in io.Reader) <-chan inputLine {
	lines := make(chan inputLine)
	go func() {
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			text, err := readLine(r)
			select {
			case lines <- inputLine{text, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return lines
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, fmt.Errorf("it is longer than %d MiB", maxLine>>20)
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// take adds the message of one line, and writes the batch when it is full.
func (e *enqueuer) take(ctx context.Context, n int, text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	m, err := parseLine(text)
	if err != nil {
		return fmt.Errorf("line %d: %w", n, err)
	}
	e.msgs, e.lines, e.bytes = append(e.msgs, m), append(e.lines, n), e.bytes+m.Size()
	if len(e.msgs) < e.batch && e.bytes < batchBytes {
		return nil
	}
	return e.flush(ctx)
}

func (e *enqueuer) flush(ctx context.Context) error {
	if len(e.msgs) == 0 {
		return nil
	}
	if err := e.write(ctx, e.msgs); err != nil {
		first, last := e.lines[0], e.lines[len(e.lines)-1]
		var me *outbox.MessageError
		if errors.As(err, &me) && me.Index < len(e.lines) {
			return fmt.Errorf("line %d: %w", e.lines[me.Index], me.Err)
		}
		if first == last {
			return fmt.Errorf("line %d: %w", first, err)
		}
		return fmt.Errorf("lines %d to %d: %w", first, last, err)
	}
	e.written += len(e.msgs)
	e.safe = e.lines[len(e.lines)-1]
	clear(e.msgs)
	e.msgs, e.lines, e.bytes = e.msgs[:0], e.lines[:0], 0
	return nil
}

// parseLine reads one object. Errors say where, and never quote the payload.
func parseLine(text []byte) (postrider.Message, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var l line
	if err := dec.Decode(&l); err != nil {
		return postrider.Message{}, decodeError(err)
	}
	if dec.More() {
		return postrider.Message{}, fmt.Errorf("column %d: unexpected text behind the JSON object", dec.InputOffset()+1)
	}
	return l.message()
}

// decodeError says it in the words of the input, not in those of Go.
func decodeError(err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
		moment *time.ParseError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("column %d: not valid JSON", syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return errors.New("must be a JSON object")
	case errors.As(err, &kind):
		return fmt.Errorf("%s must be %s", kind.Field, jsonKind(kind.Type.Kind()))
	case errors.As(err, &moment):
		return errors.New("not_before must be a time such as 2027-01-31T08:00:00Z")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON object does not end")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

func jsonKind(k reflect.Kind) string {
	if k == reflect.String {
		return "a string"
	}
	if k == reflect.Map {
		return "an object of strings"
	}
	return "a whole number within its range"
}
