package route

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider"
)

// template is a text with placeholders.
type template struct {
	parts []part
	may   bool // an empty value is allowed
}

// part is a text, or a placeholder if field is set.
type part struct {
	text   string // of a placeholder: the text for an empty value
	field  field
	header string // for the field header
	given  bool   // a placeholder has a text
}

// field is what a placeholder stands for.
type field uint8

const (
	fieldNone field = iota
	fieldTopic
	fieldKey
	fieldType
	fieldID
	fieldContentType
	fieldVersion
	fieldSchemaVersion
	fieldHeader
)

// fieldNames are the names of placeholders.
func fieldNames() []string {
	return []string{"", "topic", "key", "type", "id", "content_type", "version", "schema_version", "header"}
}

var errBrace = errors.New("has a brace that is not closed or not opened: write {{ and }} for braces")

func parse(s string) (template, error) {
	var t template
	text := ""
	for s != "" {
		at := strings.IndexAny(s, "{}")
		if at < 0 {
			text += s
			break
		}
		text += s[:at]
		switch rest := s[at:]; {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			text += rest[:1]
			s = rest[2:]
		case rest[0] == '}':
			return t, errBrace
		default:
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return t, errBrace
			}
			hole, err := parseHole(rest[1:end])
			if err != nil {
				return t, err
			}
			if text != "" {
				t.parts = append(t.parts, part{text: text})
				text = ""
			}
			t.parts = append(t.parts, hole)
			s = rest[end+1:]
		}
	}
	if text != "" {
		t.parts = append(t.parts, part{text: text})
	}
	return t, nil
}

func parseHole(s string) (part, error) {
	var p part
	var what string
	what, p.text, p.given = strings.Cut(s, "|")
	if name, ok := strings.CutPrefix(what, "header:"); ok {
		p.field, p.header = fieldHeader, name
		if name == "" || strings.ContainsAny(name, "{ :") {
			return p, fmt.Errorf("has {%.60s}: %.40q is not a header name", s, name)
		}
		return p, nil
	}
	if at := slices.Index(fieldNames()[:fieldHeader], what); at > 0 {
		p.field = field(at)
		return p, nil
	}
	return p, fmt.Errorf("has the unknown {%.60s}: use {topic}, {key}, {type}, {id}, {content_type}, {version}, {schema_version} or {header:NAME}", s)
}

// constant reports whether the template is the same text for every message.
func (t *template) constant() (string, bool) {
	switch {
	case len(t.parts) == 0:
		return "", true
	case len(t.parts) == 1 && t.parts[0].field == fieldNone:
		return t.parts[0].text, true
	}
	return "", false
}

// of fills the placeholders. missing names one without a value.
func (t *template) of(m *postrider.Message) (text, missing string) {
	if len(t.parts) == 1 { // the usual case needs no copy
		return t.parts[0].of(m, t.may)
	}
	var b strings.Builder
	for i := range t.parts {
		text, missing := t.parts[i].of(m, t.may)
		if missing != "" {
			return "", missing
		}
		b.WriteString(text)
	}
	return b.String(), ""
}

func (p *part) of(m *postrider.Message, may bool) (text, missing string) {
	switch p.field {
	case fieldNone:
		return p.text, ""
	case fieldTopic:
		text = m.Topic
	case fieldKey:
		text = m.Key
	case fieldType:
		text = m.Type
	case fieldID:
		text = m.ID
	case fieldContentType:
		text = m.ContentType
	case fieldVersion:
		text = number(m.Version)
	case fieldSchemaVersion:
		text = number(int64(m.SchemaVersion))
	case fieldHeader:
		text = m.Headers[p.header]
	}
	switch {
	case text != "":
		return text, ""
	case p.given || may && p.field == fieldKey:
		return p.text, ""
	case p.field == fieldHeader:
		return "", "header " + p.header
	}
	return "", strings.ReplaceAll(fieldNames()[p.field], "_", " ")
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
