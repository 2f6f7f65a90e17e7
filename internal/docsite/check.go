package docsite

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	reference = regexp.MustCompile(`<(\w+)\b[^>]*?\s(?:href|src)="([^"]*)"`)
	name      = regexp.MustCompile(`\sid="([^"]*)"`)
	loaded    = regexp.MustCompile(`(?:url\(|@import\s+|\bimport\()\s*["']?(https?:)?//`)
)

// Check returns what is wrong with a built site: links and anchors that lead nowhere, and
// whatever a browser would load from elsewhere.
func Check(dir string) (wrong []string, err error) {
	ids := map[string]map[string]bool{} // of a page
	var pages []string
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		rel = "/" + filepath.ToSlash(rel)
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		switch path.Ext(rel) {
		case ".html":
			ids[rel] = map[string]bool{}
			for _, m := range name.FindAllStringSubmatch(string(b), -1) {
				ids[rel][m[1]] = true
			}
			pages = append(pages, rel)
		case ".css", ".js":
			// The theme asks for icons of social links, of which the settings have none.
			text := strings.ReplaceAll(string(b), "url('https://api.iconify.design/", "")
			if m := loaded.FindString(text); m != "" {
				wrong = append(wrong, fmt.Sprintf("%s loads from elsewhere: %s", rel, m))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		b, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			return nil, err
		}
		for _, m := range reference.FindAllStringSubmatch(string(b), -1) {
			if w := follow(dir, page, m[1], m[2], ids); w != "" {
				wrong = append(wrong, page+": "+w)
			}
		}
	}
	return wrong, nil
}

// follow returns what is wrong with one reference of a page, "" if nothing is.
func follow(dir, page, tag, to string, ids map[string]map[string]bool) string {
	u, err := url.Parse(to)
	switch {
	case err != nil:
		return err.Error()
	case u.Scheme != "" || u.Host != "":
		if tag == "a" {
			return "" // a reader may follow it
		}
		return fmt.Sprintf("<%s> loads %s", tag, to)
	case u.Path == "":
		u.Path = page
	case !strings.HasPrefix(u.Path, "/"):
		u.Path = path.Join(path.Dir(page), u.Path)
	}
	if strings.HasSuffix(u.Path, "/") {
		u.Path += "index.html"
	}
	if _, err := os.Stat(filepath.Join(dir, u.Path)); err != nil {
		return "dead link " + to
	}
	if u.Fragment != "" && ids[u.Path] != nil && !ids[u.Path][u.Fragment] {
		return "dead anchor " + to
	}
	return ""
}
