package route

import (
	"cmp"
	"fmt"
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

	last atomic.Pointer[subject] // named last: an allocation less where one topic prevails
}

// subject is that of a topic.
type subject struct{ topic, name string }

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
	s = &naming{strategy: r.Strategy, framing: r.Framing, version: r.SchemaVersion}
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

// of names the schema of a message in a registry.
func (s *naming) of(m *postrider.Message, topic string) (n envelope.Schema, missing string) {
	n.Framing = s.framing
	if s.framing == envelope.Framed {
		return n, ""
	}
	if n.Version = cmp.Or(m.SchemaVersion, s.version); n.Version == 0 {
		return n, "schema_version"
	}
	if n.Record, missing = s.record.of(m); missing != "" && s.strategy != TopicName {
		return n, missing
	}
	switch s.strategy {
	case RecordName:
		n.Subject = n.Record
	case TopicRecordName:
		n.Subject = strings.Join([]string{topic, n.Record}, "-")
	default:
		last := s.last.Load()
		if last == nil || last.topic != topic {
			name := topic + "-value"
			last = &subject{name[:len(topic)], name} // topic itself may be a part of a whole read
			s.last.Store(last)
		}
		n.Subject = last.name
	}
	return n, ""
}
