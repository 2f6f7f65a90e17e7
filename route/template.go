package route

import (
	"errors"
	"fmt"
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
	field  string
	header string // for the field header
	given  bool   // a placeholder has a text
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
	p.field, p.text, p.given = strings.Cut(s, "|")
	if name, ok := strings.CutPrefix(p.field, "header:"); ok {
		p.field, p.header = "header", name
		if name == "" || strings.ContainsAny(name, "{ :") {
			return p, fmt.Errorf("has {%.60s}: %.40q is not a header name", s, name)
		}
		return p, nil
	}
	switch p.field {
	case "topic", "key", "type", "id", "content_type", "version", "schema_version":
		return p, nil
	}
	return p, fmt.Errorf("has the unknown {%.60s}: use {topic}, {key}, {type}, {id}, {content_type}, {version}, {schema_version} or {header:NAME}", s)
}

// constant reports whether the template is the same text for every message.
func (t *template) constant() (string, bool) {
	switch {
	case len(t.parts) == 0:
		return "", true
	case len(t.parts) == 1 && t.parts[0].field == "":
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
	case "":
		return p.text, ""
	case "topic":
		text = m.Topic
	case "key":
		text = m.Key
	case "type":
		text = m.Type
	case "id":
		text = m.ID
	case "content_type":
		text = m.ContentType
	case "version":
		text = number(m.Version)
	case "schema_version":
		text = number(int64(m.SchemaVersion))
	case "header":
		text = m.Headers[p.header]
	}
	switch {
	case text != "":
		return text, ""
	case p.given || may && p.field == "key":
		return p.text, ""
	case p.field == "header":
		return "", "header " + p.header
	}
	return "", strings.ReplaceAll(p.field, "_", " ")
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
