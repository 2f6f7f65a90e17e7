package route

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/seal"
)

// Strategy makes the subject of a schema registry, for the format Confluent.
type Strategy uint8

// The strategies, which are those of Confluent's serializers.
const (
	TopicName       Strategy = iota // the rule's topic and "-value"
	RecordName                      // the record's full name
	TopicRecordName                 // the rule's topic, "-" and the record's full name
)

// ParseStrategy reads "topic", "record" or "topic-record".
func ParseStrategy(s string) (Strategy, error) {
	for v, name := range [...]string{TopicName: "topic", RecordName: "record", TopicRecordName: "topic-record"} {
		if s == name {
			return Strategy(v), nil
		}
	}
	return TopicName, fmt.Errorf("unknown strategy %q: use topic, record or topic-record", s)
}

// ParseFraming reads "id", "guid" or "framed".
func ParseFraming(s string) (envelope.Framing, error) {
	for v, name := range [...]string{envelope.FrameID: "id", envelope.FrameGUID: "guid", envelope.Framed: "framed"} {
		if s == name {
			return envelope.Framing(v), nil
		}
	}
	return envelope.FrameID, fmt.Errorf("unknown framing %q: use id, guid, or framed where the writer puts the id before the payload", s)
}

// naming is what a rule says about schemas in a registry.
type naming struct {
	strategy Strategy
	framing  envelope.Framing
	version  int32
	record   template

	// Subjects that were named last: an allocation less per message.
	last   atomic.Pointer[subject]
	recent [64]atomic.Pointer[subject] // by the hash of the record or the topic
	seed   maphash.Seed
}

// subject is that of a topic and a record.
type subject struct{ topic, record, name string }

// subject names the subject of a topic and a record; "" for no record.
func (s *naming) subject(topic, record string) string {
	last := s.last.Load()
	if last != nil && last.topic == topic && last.record == record {
		return last.name
	}
	at := &s.recent[maphash.String(s.seed, cmp.Or(record, topic))%uint64(len(s.recent))]
	last = at.Load()
	if last == nil || last.topic != topic || last.record != record {
		suffix := record
		if s.strategy == TopicName {
			suffix = "value"
		}
		// Topic and record may be parts of a whole read, which must not be kept.
		name := topic + "-" + suffix
		last = &subject{topic: name[:len(topic)], record: strings.Clone(record), name: name}
		at.Store(last)
		s.last.Store(last)
	}
	return last.name
}

// registered returns what the rule says about schemas, nil if its format has none.
func (r *Rule) registered() (s *naming, wrong string) {
	if r.Format != envelope.Confluent {
		for _, set := range []struct {
			name string
			is   bool
		}{
			{"strategy", r.Strategy != TopicName},
			{"framing", r.Framing != envelope.FrameID},
			{"record", r.Record != ""},
			{"schema_version", r.SchemaVersion != 0},
		} {
			if set.is {
				return nil, set.name + " is for the format confluent, and the format is " + r.Format.String()
			}
		}
		return nil, ""
	}
	for _, name := range []string{seal.HeaderAlgorithm, seal.HeaderKey} {
		if _, sealed := r.Match.Headers[name]; sealed {
			return nil, "match selects sealed payloads by the header " + name + ", and format is confluent, whose readers cannot open them: set format to plain, or remove the header from match"
		}
	}
	s = &naming{seed: maphash.MakeSeed(), strategy: r.Strategy, framing: r.Framing, version: r.SchemaVersion}
	switch {
	case r.Strategy > TopicRecordName:
		return nil, "strategy is unknown: use topic, record or topic-record"
	case r.Framing > envelope.Framed:
		return nil, "framing is unknown: use id, guid or framed"
	case r.SchemaVersion < 0:
		return nil, fmt.Sprintf("schema_version is %d: use a version of the registry, from 1 on", r.SchemaVersion)
	case r.Framing == envelope.Framed && (r.Strategy != TopicName || r.Record != "" || r.SchemaVersion != 0):
		return nil, "framing is framed, so the writer chooses the schema: remove strategy, record and schema_version"
	}
	var err error
	if s.record, err = parse(cmp.Or(r.Record, "{type}")); err != nil {
		return nil, "record " + err.Error()
	}
	return s, ""
}

// of sets the schema of a message in a registry to n.
func (s *naming) of(n *envelope.Schema, m *postrider.Message, topic string) (missing string) {
	n.Framing = s.framing
	if s.framing == envelope.Framed {
		return ""
	}
	if n.Version = cmp.Or(m.SchemaVersion, s.version); n.Version == 0 {
		return "schema_version"
	}
	if n.Record, missing = s.record.of(m); missing != "" && s.strategy != TopicName {
		return missing
	}
	switch s.strategy {
	case RecordName:
		n.Subject = n.Record
	case TopicRecordName:
		n.Subject = s.subject(topic, n.Record)
	default:
		n.Subject = s.subject(topic, "")
	}
	return ""
}
