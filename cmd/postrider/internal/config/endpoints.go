package config

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"go.yaml.in/yaml/v4"
)

// endpointsKey is the list of a file of webhook endpoints:
//
//	endpoints:
//	  - name: billing
//	    topics: [orders.*, invoices]
//	    url: https://billing.example.com/hooks
//	    secret_file: /run/secrets/billing
//	  - url: https://hooks.example.com/in
//	    secret_file: /run/secrets/rest
const endpointsKey = "endpoints"

// Endpoint is one entry: a URL, and settings under their names with dashes.
type Endpoint struct {
	Where    string // "endpoints.yml:3:5"
	URL      string
	Settings url.Values
}

// Endpoints reads the list of a file. No error repeats a value.
func Endpoints(name string) ([]Endpoint, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, &Error{name, "cannot be read: " + unwrapPath(err)}
	}
	var doc yaml.Node
	if len(strings.TrimSpace(string(data))) > 0 {
		if err := yaml.Load(data, &doc); err != nil {
			return nil, syntaxError(name, err)
		}
	}
	at := place(name)
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode || len(doc.Content[0].Content) != 2 ||
		doc.Content[0].Content[0].Value != endpointsKey || doc.Content[0].Content[1].Kind != yaml.SequenceNode {
		return nil, &Error{name, "must hold one list, `endpoints:`, of entries that begin with `- url: URL`"}
	}
	list := doc.Content[0].Content[1]
	all := make([]Endpoint, 0, len(list.Content))
	for _, entry := range list.Content {
		e, err := parseEndpoint(at, entry)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func parseEndpoint(at place, entry *yaml.Node) (Endpoint, error) {
	e := Endpoint{Where: at.of(entry), Settings: url.Values{}}
	if entry.Kind != yaml.MappingNode {
		return e, &Error{e.Where, "an entry of endpoints begins with `- url: URL`, and its settings follow"}
	}
	for i := 0; i+1 < len(entry.Content); i += 2 {
		k, v := entry.Content[i], entry.Content[i+1]
		values := []*yaml.Node{v}
		if v.Kind == yaml.SequenceNode {
			values = v.Content
		}
		var texts []string
		for _, one := range values {
			if one.Kind != yaml.ScalarNode {
				return e, &Error{at.of(one), fmt.Sprintf("%s must be a value or a list of values", k.Value)}
			}
			texts = append(texts, one.Value)
		}
		text := strings.Join(texts, ",")
		if k.Value == "url" && e.URL == "" {
			e.URL = text
			continue
		}
		e.Settings.Add(strings.ReplaceAll(k.Value, "_", "-"), text)
	}
	if e.URL == "" {
		return e, &Error{e.Where, "the entry has no url"}
	}
	return e, nil
}
