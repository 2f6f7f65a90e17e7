package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"text/tabwriter"
)

// wide writes every field of an answer for a person: a list as a table with a column for each
// field that some element has a value for, an object as a line for each field, with its lists
// below as tables.
func (p Printer) wide(data []byte) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	if err := wideValue(w, bytes.TrimSpace(data)); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := p.Out.Write(p.finished(b.Bytes()))
	return err
}

func wideValue(w *tabwriter.Writer, data json.RawMessage) error {
	all, err := elements(data)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		Row(w, "none")
		return nil
	}
	if data[0] == '[' {
		return wideTable(w, all)
	}
	own, err := flat("", all[0])
	if err != nil {
		return err
	}
	for _, f := range own {
		if !isTable(f.raw) {
			Row(w, strings.ReplaceAll(f.name, "_", " "), wideCell(f.raw))
		}
	}
	for _, f := range own {
		if !isTable(f.raw) {
			continue
		}
		rows, err := elements(f.raw)
		if err != nil {
			return err
		}
		Row(w)
		Row(w, strings.ReplaceAll(f.name, "_", " ")+":")
		if err := wideTable(w, rows); err != nil {
			return err
		}
	}
	return nil
}

func wideTable(w *tabwriter.Writer, all []json.RawMessage) error {
	var head []string
	at := map[string]int{}
	rows := make([][]field, len(all))
	for i, one := range all {
		var err error
		if rows[i], err = flat("", one); err != nil {
			return err
		}
		for _, f := range rows[i] {
			if _, known := at[f.name]; !known && wideCell(f.raw) != "" {
				at[f.name] = len(head)
				head = append(head, f.name)
			}
		}
	}
	titles := make([]any, len(head))
	for i, name := range head {
		titles[i] = strings.ToUpper(strings.ReplaceAll(name, "_", " "))
	}
	Row(w, titles...)
	for _, row := range rows {
		cells := make([]any, len(head))
		for i := range cells {
			cells[i] = ""
		}
		for _, f := range row {
			if i, known := at[f.name]; known {
				cells[i] = wideCell(f.raw)
			}
		}
		Row(w, cells...)
	}
	return nil
}

// flat returns the fields of an object, those of its objects with the name of the object before theirs.
func flat(prefix string, data json.RawMessage) (all []field, err error) {
	own, err := fields(data)
	if err != nil {
		return nil, err
	}
	for _, f := range own {
		f.name = prefix + f.name
		if len(f.raw) > 0 && f.raw[0] == '{' {
			inner, err := flat(f.name+" ", f.raw)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			continue
		}
		all = append(all, f)
	}
	return all, nil
}

// isTable reports whether a value is a list of objects.
func isTable(raw json.RawMessage) bool {
	all, err := elements(raw)
	return err == nil && len(all) > 0 && raw[0] == '[' && all[0][0] == '{'
}

// wideCell is a value on one line; what has none is empty.
func wideCell(raw json.RawMessage) string {
	var (
		text string
		list []string
	)
	switch {
	case string(raw) == "null" || string(raw) == "[]" || string(raw) == "{}":
		return ""
	case json.Unmarshal(raw, &text) == nil:
		return text
	case json.Unmarshal(raw, &list) == nil:
		return strings.Join(list, ", ")
	}
	return string(raw)
}
