// Package docsite makes a site of the repository's Markdown, which stays readable as it
// is: it stages the pages for VitePress and checks what VitePress has built.
package docsite

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// source is where files are that are no pages.
const source = "https://github.com/postrider/postrider"

// Site is the pages of a repository.
type Site struct {
	root  string
	pages []string // paths from the root, of Markdown
	shown []string // pictures
}

// Open finds the pages below root.
func Open(root string) (*Site, error) {
	s := &Site{root: root}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"node_modules", "testdata", "dist", "bin"}, d.Name())) {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(root, name)
		switch {
		case err != nil || d.IsDir():
		case strings.HasSuffix(name, ".md"):
			s.pages = append(s.pages, filepath.ToSlash(rel))
		case strings.HasSuffix(name, ".png"):
			s.shown = append(s.shown, filepath.ToSlash(rel))
		}
		return err
	})
	return s, err
}

// at is where a page is on the site: the README of a folder is its index.
func at(page string) string {
	if path.Base(page) == "README.md" {
		return path.Join(path.Dir(page), "index.md")
	}
	return page
}

var (
	// code is what holds no links: fenced blocks and code in a line.
	code = regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]+`")
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// Stage writes the pages and VitePress's settings into dir.
func (s *Site) Stage(dir string) error {
	for _, page := range s.pages {
		text, err := os.ReadFile(filepath.Join(s.root, page))
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, at(page)), s.rewrite(page, string(text))); err != nil {
			return err
		}
	}
	for _, picture := range s.shown {
		b, err := os.ReadFile(filepath.Join(s.root, picture))
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "public", picture), string(b)); err != nil {
			return err
		}
	}
	sidebar, err := s.sidebar()
	if err != nil {
		return err
	}
	menu, err := json.MarshalIndent(sidebar, "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, ".vitepress", "config.mjs"), fmt.Sprintf(settings, menu))
}

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

// settings of VitePress. Its anchors are those of GitHub, for which the pages are written.
const settings = `import { defineConfig } from 'vitepress'

export default defineConfig({
  title: 'Postrider',
  description: 'Transactional outbox, relay and inbox',
  lang: 'en',
  markdown: {
    anchor: { slugify: s => s.toLowerCase().replace(/[^a-z0-9 _-]/g, '').replaceAll(' ', '-') },
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    nav: [{ text: 'Guarantees', link: '/docs/guarantees' }, { text: 'Runbook', link: '/docs/runbook' }, { text: 'All pages', link: '/docs/' }],
    sidebar: %s,
  },
})
`

// rewrite makes the links of a page lead to pages of the site. Other files are at the source.
func (s *Site) rewrite(page, text string) string {
	var b strings.Builder
	from := 0
	for _, hidden := range append(code.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		b.WriteString(link.ReplaceAllStringFunc(text[from:hidden[0]], func(m string) string {
			return "](" + s.target(page, m[2:len(m)-1]) + ")"
		}))
		b.WriteString(braces(text[hidden[0]:hidden[1]]))
		from = hidden[1]
	}
	return b.String()
}

// braces writes code in a line such that Vue evaluates nothing in it.
func braces(code string) string {
	if strings.HasPrefix(code, "```") || !strings.Contains(code, "{{") && !strings.Contains(code, "}}") {
		return code
	}
	inner := html.EscapeString(strings.Trim(code, "`"))
	return "<code>" + strings.NewReplacer("{", "&#123;", "}", "&#125;").Replace(inner) + "</code>"
}

// target is where a link of a page leads on the site. One that leads nowhere stays, and
// VitePress refuses it.
func (s *Site) target(page, to string) string {
	if strings.Contains(to, ":") || strings.HasPrefix(to, "#") {
		return to
	}
	name, anchor, found := strings.Cut(to, "#")
	if found {
		anchor = "#" + anchor
	}
	whole := path.Join(path.Dir(page), name)
	if slices.Contains(s.pages, whole) {
		return "/" + at(whole) + anchor
	}
	if index := path.Join(whole, "README.md"); slices.Contains(s.pages, index) {
		return "/" + at(index) + anchor
	}
	if slices.Contains(s.shown, whole) {
		return "/" + whole
	}
	info, err := os.Stat(filepath.Join(s.root, whole))
	switch {
	case err != nil:
		return to
	case info.IsDir():
		return source + "/tree/main/" + whole
	}
	return source + "/blob/main/" + whole
}

// Item is an entry of the menu.
type Item struct {
	Text      string `json:"text"`
	Link      string `json:"link,omitempty"`
	Collapsed *bool  `json:"collapsed,omitempty"`
	Items     []Item `json:"items,omitempty"`
}

var (
	group = regexp.MustCompile(`(?m)^\*\*([^*]+)\.\*\*`)
	entry = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
)

// sidebar is the menu: docs/README.md lists what each kind of reader needs.
func (s *Site) sidebar() ([]Item, error) {
	const index = "docs/README.md"
	b, err := os.ReadFile(filepath.Join(s.root, index))
	if err != nil {
		return nil, err
	}
	text := string(b)
	heads := group.FindAllStringSubmatchIndex(text, -1)
	if len(heads) == 0 {
		return nil, errors.New(index + " has no group such as **You operate it.**")
	}
	var menu []Item
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		g, seen := Item{Text: text[h[2]:h[3]]}, map[string]bool{}
		for _, m := range entry.FindAllStringSubmatch(text[h[1]:end], -1) {
			to := s.target(index, m[2])
			if strings.HasPrefix(to, source) || seen[to] {
				continue
			}
			seen[to] = true
			page := strings.TrimPrefix(to, "/")
			g.Items = append(g.Items, Item{Text: s.title(page, m[1]), Link: strings.TrimSuffix(strings.TrimSuffix(to, ".md"), "index")})
		}
		menu = append(menu, g)
	}
	return append(menu, s.decisions()), nil
}

// decisions lists docs/adr, newest first.
func (s *Site) decisions() Item {
	yes := true
	g := Item{Text: "Decisions", Collapsed: &yes}
	for _, page := range slices.Backward(s.pages) {
		if path.Dir(page) == "docs/adr" {
			g.Items = append(g.Items, Item{Text: s.title(page, page), Link: "/" + strings.TrimSuffix(page, ".md")})
		}
	}
	return g
}

var heading = regexp.MustCompile(`(?m)^# (.+)$`)

// title is the first heading of a page of the site.
func (s *Site) title(page, otherwise string) string {
	page, _, _ = strings.Cut(page, "#")
	for _, p := range s.pages {
		if at(p) != page {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(s.root, p)); err == nil {
			if m := heading.FindStringSubmatch(string(b)); m != nil {
				return strings.ReplaceAll(m[1], "`", "")
			}
		}
	}
	return otherwise
}
