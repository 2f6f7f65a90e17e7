package schemas

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/postrider/postrider/schema/evolve"
)

// The part of SARIF 2.1.0 that code scanners read.
type (
	sarifLog struct {
		Version string     `json:"version"`
		Schema  string     `json:"$schema"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
)

// sarifOf writes the findings for a code scanner. The folder of the schemas is at root, which scanners
// read as a path from the top of the repository.
func sarifOf(r *report, f *folder, root string) ([]byte, error) {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "postrider", Rules: []sarifRule{}}}, Results: []sarifResult{}}
	for i := range r.Results {
		one := &r.Results[i]
		for _, c := range one.Comparisons {
			for _, found := range c.Findings {
				run.add(found, one, f, root)
			}
		}
	}
	if r.Rows != nil {
		for i := range r.Rows.Reasons {
			one := &r.Rows.Reasons[i]
			versions := f.subjects[one.Subject]
			run.report("schema/payload", "payloads of the outbox break a schema", one.text(), path.Join(root, versions[len(versions)-1].Path), 1)
		}
	}
	text, err := json.MarshalIndent(sarifLog{"2.1.0", "https://json.schemastore.org/sarif-2.1.0.json", []sarifRun{run}}, "", "  ")
	return append(text, '\n'), err
}

func (run *sarifRun) add(found evolve.Finding, one *evolve.Result, f *folder, root string) {
	text := found.Detail
	switch {
	case found.Example != nil:
		text += "; example: " + string(found.Example)
	case found.Undecided:
		text += "; undecided: neither a proof nor an example was found"
	}
	file, pointer, _ := strings.Cut(found.Path, "#")
	at := slices.IndexFunc(f.subjects[one.Subject], func(v evolve.Version) bool { return v.Path == file })
	line := max(1, found.Line)
	if at >= 0 && found.Line == 0 {
		line = lineOf(f.subjects[one.Subject][at].Text, pointer)
	}
	run.report("schema/"+found.Rule, "a schema change breaks "+found.Rule, text, path.Join(root, file), line)
}

// report adds a result, and its rule unless there is one.
func (run *sarifRun) report(rule, about, text, file string, line int) {
	rules := &run.Tool.Driver.Rules
	if !slices.ContainsFunc(*rules, func(r sarifRule) bool { return r.ID == rule }) {
		*rules = append(*rules, sarifRule{rule, sarifText{about}})
	}
	run.Results = append(run.Results, sarifResult{
		RuleID: rule, Level: "error", Message: sarifText{text},
		Locations: []sarifLocation{{sarifPhysical{sarifArtifact{file}, sarifRegion{line}}}},
	})
}

// lineOf finds the line of a JSON pointer's value, or of the last part of it that is there.
func lineOf(text []byte, pointer string) int {
	at, want := 0, 0
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	var walk func(depth int, on bool) bool // reads one value
	walk = func(depth int, on bool) bool {
		if on && depth >= want {
			at, want = int(d.InputOffset()), depth
		}
		t, err := d.Token()
		if err != nil {
			return false
		}
		open, ok := t.(json.Delim)
		if !ok {
			return true
		}
		for n := 0; d.More(); n++ {
			var name string
			if open == '{' {
				key, err := d.Token()
				if err != nil {
					return false
				}
				name, _ = key.(string)
			} else {
				name = itoa(n)
			}
			if !walk(depth+1, on && depth < len(parts) && parts[depth] == name) {
				return false
			}
		}
		_, err = d.Token()
		return err == nil
	}
	walk(0, true)
	return 1 + strings.Count(string(text[:at]), "\n")
}
