// Package lines reads messages from a stream, one JSON object per line.
package lines

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
	"time"

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

// Reader reads messages, one JSON object per line, and writes them in batches.
type Reader struct {
	Write   func(context.Context, []postrider.Message) error
	Batch   int // messages to a call of Write
	msgs    []postrider.Message
	bytes   int   // of msgs
	lines   []int // line number of each message
	Written int   // messages
	safe    int   // last line whose batch is committed
}

// A batch also ends at so many bytes, and no line may be longer than MaxLine:
// neither must fill the memory.
const (
	batchBytes = 16 << 20
	MaxLine    = 64 << 20
)

// Progress says what stays written after an error.
func (r *Reader) Progress() string {
	switch r.Written {
	case 0:
		return "nothing is written"
	case 1:
		return fmt.Sprintf("1 message up to line %d is written", r.safe)
	}
	return fmt.Sprintf("%d messages up to line %d are written", r.Written, r.safe)
}

// inputLine is what one read of stdin brought.
type inputLine struct {
	text []byte
	err  error
}

// Run reads in until its end or that of ctx. An error names the line; the batches before it stay written.
func (r *Reader) Run(ctx context.Context, in io.Reader) error {
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
		if err := r.take(ctx, n, l.text); err != nil {
			return err
		}
		if ended {
			return r.flush(ctx)
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
		case len(line) > MaxLine:
			return nil, fmt.Errorf("it is longer than %d MiB", MaxLine>>20)
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// take adds the message of one line, and writes the batch when it is full.
func (r *Reader) take(ctx context.Context, n int, text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	m, err := parseLine(text)
	if err != nil {
		return fmt.Errorf("line %d: %w", n, err)
	}
	r.msgs, r.lines, r.bytes = append(r.msgs, m), append(r.lines, n), r.bytes+m.Size()
	if len(r.msgs) < r.Batch && r.bytes < batchBytes {
		return nil
	}
	return r.flush(ctx)
}

func (r *Reader) flush(ctx context.Context) error {
	if len(r.msgs) == 0 {
		return nil
	}
	if err := r.Write(ctx, r.msgs); err != nil {
		first, last := r.lines[0], r.lines[len(r.lines)-1]
		var me *outbox.MessageError
		if errors.As(err, &me) && me.Index < len(r.lines) {
			return fmt.Errorf("line %d: %w", r.lines[me.Index], me.Err)
		}
		if first == last {
			return fmt.Errorf("line %d: %w", first, err)
		}
		return fmt.Errorf("lines %d to %d: %w", first, last, err)
	}
	r.Written += len(r.msgs)
	r.safe = r.lines[len(r.lines)-1]
	clear(r.msgs)
	r.msgs, r.lines, r.bytes = r.msgs[:0], r.lines[:0], 0
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
