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
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider"
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
			"it stay written, and the message says how many lines that is.",
		Example: `  echo '{"topic":"orders","key":"o-1","type":"order.placed","payload":{"qty":2}}' |
    postrider enqueue --store sqlite:shop.db`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if batch < 1 || batch > 10_000 {
				return usagef("batch is %d: use 1 to 10000", batch)
			}
			st, err := openStore(&a.set)
			if err != nil {
				return err
			}
			defer st.close()
			if err := ready(cmd.Context(), st, a.schemaName()); err != nil {
				return err
			}
			e := &enqueuer{write: st.enqueue, batch: batch}
			if err := e.run(cmd.Context(), a.in); err != nil {
				return fmt.Errorf("%w; %d messages up to line %d are written", err, e.written, e.safe)
			}
			return a.print(map[string]int{"enqueued": e.written}, func(w *tabwriter.Writer) { row(w, fmt.Sprintf("%d messages enqueued", e.written)) })
		},
	}
	cmd.Flags().IntVar(&batch, "batch", 500, "messages per transaction")
	return cmd
}

type enqueuer struct {
	write   func(context.Context, []postrider.Message) error
	batch   int
	msgs    []postrider.Message
	lines   []int // line number of each message
	written int
	safe    int // last line whose batch is committed
}

func (e *enqueuer) run(ctx context.Context, in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for n := 1; ; n++ {
		text, err := r.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("line %d: cannot be read: %w", n, err)
		}
		if len(bytes.TrimSpace(text)) > 0 {
			m, lineErr := parseLine(text)
			if lineErr != nil {
				return fmt.Errorf("line %d: %w", n, lineErr)
			}
			e.msgs, e.lines = append(e.msgs, m), append(e.lines, n)
		}
		if len(e.msgs) >= e.batch || err == io.EOF {
			if err := e.flush(ctx); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
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
		return fmt.Errorf("lines %d to %d: %w", first, last, err)
	}
	e.written += len(e.msgs)
	e.safe = e.lines[len(e.lines)-1]
	e.msgs, e.lines = e.msgs[:0], e.lines[:0]
	return nil
}

// parseLine reads one object. Errors say where, and never quote the payload.
func parseLine(text []byte) (postrider.Message, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var l line
	if err := dec.Decode(&l); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return postrider.Message{}, fmt.Errorf("column %d: not valid JSON", syntax.Offset)
		case errors.As(err, &kind):
			return postrider.Message{}, fmt.Errorf("%s must be a %s", kind.Field, kind.Type)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return postrider.Message{}, errors.New("the JSON object does not end")
		}
		return postrider.Message{}, err
	}
	if dec.More() {
		return postrider.Message{}, errors.New("holds more than one JSON value")
	}
	return l.message()
}
