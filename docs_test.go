package postrider_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// These tests keep the documents: their links, their size and their words.

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// deadLinks returns the relative links of a document that lead nowhere.
func deadLinks(file, text string) (dead []string) {
	code := regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]+`")
	for _, m := range regexp.MustCompile(`\]\(([^)\s]*)\)`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		if strings.Contains(m[1], ":") {
			continue
		}
		target, anchor, _ := strings.Cut(m[1], "#")
		there := text
		if target != "" {
			b, err := os.ReadFile(path.Join(path.Dir(file), target))
			if err != nil {
				if info, e := os.Stat(path.Join(path.Dir(file), target)); e != nil || !info.IsDir() {
					dead = append(dead, m[1])
				}
				continue
			}
			there = string(b)
		}
		if anchor != "" && !anchors(there)[anchor] {
			dead = append(dead, m[1])
		}
	}
	return dead
}

func TestLinks(t *testing.T) {
	if dead := deadLinks("README.md", "# A b\n[a](#a-b) [b](#c) [c](docs/none.md) [d](docs)"); len(dead) != 2 {
		t.Fatalf("the check finds %v", dead)
	}
	for _, file := range documents(t) {
		for _, link := range deadLinks(file, read(t, file)) {
			t.Errorf("%s: the link %s leads nowhere", file, link)
		}
	}
}

// TestPagesAreShort: a page has one reader and one task.
func TestPagesAreShort(t *testing.T) {
	for _, page := range []string{"runbook", "postgres", "brokers", "relay", "sizing", "consuming"} {
		if n := len(strings.Fields(read(t, "docs/"+page+".md"))); n > 2500 {
			t.Errorf("docs/%s.md has %d words, more than 2500: cut it, or give a task its own page", page, n)
		}
	}
}
