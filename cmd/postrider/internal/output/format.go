package output

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Formats lists what --output may be, the default first.
func Formats() []string { return []string{"text", "wide", "json", "jsonl", "yaml", "csv"} }

// Structured reports whether the answer is printed field by field, and not as the text of its command.
func (p Printer) Structured() bool { return p.Format != "" && p.Format != "text" }

// structured writes v in the printer's format.
func (p Printer) structured(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	switch p.Format {
	case "wide":
		return p.wide(b.Bytes())
	case "jsonl":
		return lines(p.Out, b.Bytes())
	case "yaml":
		return asYAML(p.Out, b.Bytes())
	case "csv":
		return asCSV(p.Out, b.Bytes())
	}
	_, err := p.Out.Write(b.Bytes())
	return err
}

// elements returns those of an array, and any other value as the only one.
func elements(data []byte) (all []json.RawMessage, err error) {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '[' {
		err = json.Unmarshal(data, &all)
		return all, err
	}
	if string(data) == "null" {
		return nil, nil
	}
	return []json.RawMessage{data}, nil
}

// lines writes each element as one line of JSON.
func lines(out io.Writer, data []byte) error {
	all, err := elements(data)
	if err != nil {
		return err
	}
	for _, one := range all {
		if _, err := fmt.Fprintf(out, "%s\n", one); err != nil {
			return err
		}
	}
	return nil
}

// asYAML writes JSON in the order of its fields. JSON is YAML: its texts stay texts.
func asYAML(out io.Writer, data []byte) error {
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	block(&doc)
	text, err := yaml.Dump(&doc)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// block lets a node be written over several lines. Texts stay quoted, so that "no" is a text
// for every reader.
func block(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	for _, c := range n.Content {
		block(c)
	}
}

// field is one field of an object.
type field struct {
	name string
	raw  json.RawMessage
}

// fields returns those of an object in their order, or one without a name of any other value.
func fields(data json.RawMessage) ([]field, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	first, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if first != json.Delim('{') {
		return []field{{"value", data}}, nil
	}
	var all []field
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		f := field{name: fmt.Sprint(name)}
		if err := dec.Decode(&f.raw); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// asCSV writes one row for each element, with a column for each field that some element has. What
// is no text, number or truth is JSON.
func asCSV(out io.Writer, data []byte) error {
	all, err := elements(data)
	if err != nil {
		return err
	}
	var head []string
	at := map[string]int{}
	rows := make([][]field, len(all))
	for i, one := range all {
		if rows[i], err = fields(one); err != nil {
			return err
		}
		for _, f := range rows[i] {
			if _, known := at[f.name]; !known {
				at[f.name] = len(head)
				head = append(head, f.name)
			}
		}
	}
	if len(head) == 0 {
		return nil
	}
	w := csv.NewWriter(out)
	titles := make([]string, len(head))
	for i, name := range head {
		titles[i] = harmless(name)
	}
	err = w.Write(titles)
	for i := 0; err == nil && i < len(rows); i++ {
		cells := make([]string, len(head))
		for _, f := range rows[i] {
			cells[at[f.name]] = cell(f.raw)
		}
		err = w.Write(cells)
	}
	w.Flush()
	if err == nil {
		err = w.Error()
	}
	return err
}

func cell(raw json.RawMessage) string {
	var text string
	switch {
	case string(raw) == "null":
		return ""
	case json.Unmarshal(raw, &text) == nil:
		return harmless(text)
	}
	return string(raw) // a number, a truth, an object or a list: none begins a formula that is not a number
}

// harmless puts an apostrophe before a text that a spreadsheet would take for a formula.
func harmless(text string) string {
	if strings.ContainsAny(text[:min(len(text), 1)], "=+-@\t\r\n") || strings.HasPrefix(text, "＝") || strings.HasPrefix(text, "＋") || strings.HasPrefix(text, "－") || strings.HasPrefix(text, "＠") {
		return "'" + text
	}
	return text
}
