package registry

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions are the options of a [Source]. Nil options are the defaults.
type SourceOptions struct {
	// Type names the type of a message; nil: the record's full name, or the title of a
	// JSON Schema, or its subject.
	Type func(subject, record string) string
	// Logger is for outages of the registry; nil: silent.
	Logger *slog.Logger
}

// Source is a source that reads the frames of other writers, such as Confluent's
// serializers: it removes the id of the schema, and sets the message's type, and
// the schema version to the registry's version of the subject. Messages of Postrider, and
// payloads without a frame, pass as they are.
//
// Of the subjects of a schema it takes that of the topic (TOPIC-value, TOPIC-RECORD), then
// the record's, then the only one. A message whose id is unknown has an error and becomes a
// dead letter. While the registry does not answer, messages with ids that were not
// asked for before wait, and those behind them.
type Source struct {
	c        *Client
	from     broker.Source
	opts     SourceOptions
	unframed atomic.Int64

	mu   sync.Mutex
	read map[string]*written // by id or GUID
}

// written is a schema that a writer used.
type written struct {
	kind     sr.SchemaType
	records  map[string]string // full names, by the encoded index of a Protobuf message; else by that of no index
	versions []sr.SubjectVersion
	err      error // the registry does not know it
	until    time.Time
}

var _ broker.Source = (*Source)(nil)

// Source reads the frames of the messages that from receives.
func (c *Client) Source(from broker.Source, opts *SourceOptions) *Source {
	s := &Source{c: c, from: from, read: map[string]*written{}}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.New(slog.DiscardHandler)
	}
	return s
}

// Unframed counts the messages of other writers that had no frame.
func (s *Source) Unframed() int64 { return s.unframed.Load() }

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo { return s.from.Info() }

// Settle implements broker.Source.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	return s.from.Settle(ctx, verdicts)
}

// Extend implements broker.Source.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	return s.from.Extend(ctx, deliveries)
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	all, err := s.from.Receive(ctx, limit)
	if err != nil {
		return all, err
	}
	for i := range all {
		if err := s.unframe(ctx, &all[i], all); err != nil {
			return nil, errors.Join(err, s.giveBack(ctx, all))
		}
	}
	return all, nil
}

// giveBack returns what was received when ctx ends before it could be read.
func (s *Source) giveBack(ctx context.Context, all []broker.Delivery) error {
	verdicts := make([]broker.Verdict, len(all))
	for i := range all {
		verdicts[i].Delivery = all[i]
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.c.timeout)
	defer cancel()
	return s.from.Settle(ctx, verdicts)
}

// unframe reads the frame of one message, and waits for the registry. Its error is that of ctx.
func (s *Source) unframe(ctx context.Context, d *broker.Delivery, all []broker.Delivery) error {
	m := &d.Message
	if d.Err != nil || !d.Foreign {
		return nil //nolint:nilerr // the delivery has its error
	}
	key, payload := "", m.Payload
	guid := m.Headers[envelope.SchemaGUID]
	id, rest, framed := FrameID(m.Payload)
	switch {
	case len(guid) >= 17 && guid[0] == 1:
		text := hex.EncodeToString([]byte(guid[1:17]))
		key = strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
	case framed:
		payload = rest
	default:
		s.unframed.Add(1)
		return nil
	}
	w, err := s.ask(ctx, key, int(id), all)
	if err != nil {
		return err
	}
	if w.err != nil {
		d.Err = w.err
		return nil //nolint:nilerr // the delivery has its error
	}
	var index []int
	if w.kind == sr.TypeProtobuf {
		if key != "" {
			index, _, err = MessageIndex(append([]byte(guid[17:]), map[bool]string{true: "\x00"}[len(guid) == 17]...))
		} else {
			index, payload, err = MessageIndex(payload)
		}
		if err != nil {
			d.Err = &Error{Code: CodeFrame, Registry: s.c.place, Subject: "of topic " + m.Topic, Reason: "correct the writer", Err: err}
			return nil //nolint:nilerr // the delivery has its error
		}
	}
	record := w.records[string(appendIndex(nil, index))]
	v, ok := pick(w.versions, m.Topic, record)
	if !ok {
		d.Err = &Error{Code: CodeUnknown, Registry: s.c.place, Subject: "of topic " + m.Topic, Reason: "the registry has it under several subjects, and none of them is of the topic or the record: register it as " + m.Topic + "-value"}
		return nil
	}
	m.Payload, m.SchemaVersion = payload, int32(v.Version)
	delete(m.Headers, envelope.SchemaGUID)
	if m.Type == "" {
		if s.opts.Type != nil {
			m.Type = s.opts.Type(v.Subject, record)
		} else {
			m.Type = cmp.Or(record, v.Subject)
		}
	}
	return nil
}

// ask returns the schema of an id or a GUID. It waits while the registry does not answer.
func (s *Source) ask(ctx context.Context, guid string, id int, all []broker.Delivery) (*written, error) {
	key := cmp.Or(guid, strconv.Itoa(id))
	for down := false; ; {
		s.mu.Lock()
		w := s.read[key]
		s.mu.Unlock()
		if w != nil && (w.err == nil || time.Now().Before(w.until)) {
			return w, nil
		}
		limited, cancel := context.WithTimeout(ctx, s.c.timeout)
		w, err := s.find(limited, guid, id)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var wrong *Error
		if errors.As(err, &wrong) && !wrong.Down() && wrong.Code != CodeDenied {
			w, err = &written{err: wrong, until: time.Now().Add(refusalFor)}, nil
		}
		if err == nil {
			s.mu.Lock()
			if len(s.read) >= refusalsMost {
				clear(s.read)
			}
			s.read[key] = w
			s.mu.Unlock()
			if down {
				s.opts.Logger.Info("schema registry reachable again", "registry", s.c.place)
			}
			return w, nil
		}
		if !down {
			s.opts.Logger.Warn("schema registry unavailable", "registry", s.c.place, "error", err)
		}
		down = true
		if err := s.wait(ctx, all); err != nil {
			return nil, err
		}
	}
}

// wait keeps what was received while the registry is asked again.
func (s *Source) wait(ctx context.Context, all []broker.Delivery) error {
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	if s.from.Info().AckWait > 0 {
		return s.from.Extend(ctx, all)
	}
	return nil
}

func (s *Source) find(ctx context.Context, guid string, id int) (*written, error) {
	name := "with the id " + cmp.Or(guid, strconv.Itoa(id))
	if guid != "" {
		ids, err := s.c.sr.SchemaIDsByGUID(ctx, guid)
		switch {
		case err != nil:
			return nil, s.c.wrong("with the GUID "+guid, err)
		case len(ids) == 0:
			return nil, &Error{Code: CodeUnknown, Registry: s.c.place, Subject: "with the GUID " + guid, Reason: "unknown: register it, then retry"}
		}
		id = ids[0].ID
	}
	found, err := s.c.sr.SchemaByID(ctx, id)
	if err != nil {
		return nil, s.c.wrong(name, err)
	}
	versions, err := s.c.sr.SchemaVersionsByID(ctx, id)
	if err != nil {
		return nil, s.c.wrong(name, err)
	}
	return &written{kind: found.Type, records: recordsOf(found.Type, found.Schema), versions: versions}, nil
}

// pick chooses the subject of a topic's message.
func pick(all []sr.SubjectVersion, topic, record string) (sr.SubjectVersion, bool) {
	for _, name := range []string{topic + "-value", topic + "-" + record, record} {
		if at := slices.IndexFunc(all, func(v sr.SubjectVersion) bool { return v.Subject == name }); at >= 0 {
			return all[at], true
		}
	}
	if len(all) == 1 {
		return all[0], true
	}
	return sr.SubjectVersion{}, false
}

// recordsOf lists the full names of the types that a schema describes.
func recordsOf(kind sr.SchemaType, text string) map[string]string {
	all := map[string]string{}
	switch kind {
	case sr.TypeProtobuf:
		file, err := parse(text)
		if err != nil {
			return nil
		}
		eachMessage(file, func(name string, index []int) { all[string(appendIndex(nil, index))] = name })
		return all
	case sr.TypeJSON, sr.TypeAvro:
	}
	var named struct{ Name, Namespace, Title string }
	bad := json.Unmarshal([]byte(text), &named) != nil
	name := named.Name
	switch {
	case bad || kind == sr.TypeJSON:
		name = named.Title
	case named.Namespace != "" && !strings.Contains(name, "."):
		name = named.Namespace + "." + name
	}
	all[string(appendIndex(nil, nil))] = name
	return all
}
