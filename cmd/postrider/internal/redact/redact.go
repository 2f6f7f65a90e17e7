// Package redact decides what the program shows of a URL and of a word that a person
// typed. It looks at their form alone and never searches a text for a secret: what such
// a search replaced would show where the secret had been equal to something harmless.
package redact

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hidden stands for the part of a URL that may hold a secret.
const Hidden = "..."

var (
	schemeForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]{0,20}$`)
	portForm   = regexp.MustCompile(`^[0-9]{1,5}$`)
)

// Place returns where a URL points to: scheme, hosts and path, without user, password
// and parameters. Of http and https the path is left out, since a webhook's is often a
// secret. Where characters that are not percent-encoded leave open which part is the
// password, Place returns the scheme alone.
func Place(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return local(raw)
	}
	if !schemeForm.MatchString(scheme) {
		return Hidden
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	hosts := authority
	if user, after, ok := strings.Cut(authority, "@"); ok && user != "" {
		hosts = after
	}
	if strings.Contains(hosts, "@") || strings.Contains(path, "@") || !addresses(hosts) {
		return scheme + "://" + Hidden
	}
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	if scheme == "http" || scheme == "https" {
		path = ""
	}
	return visible(scheme + "://" + hosts + path)
}

// addresses reports whether each of hosts is HOST or HOST:PORT. A user and a password
// without a host look like a host with an odd port.
func addresses(hosts string) bool {
	for host := range strings.SplitSeq(hosts, ",") {
		if i := strings.LastIndexByte(host, ']'); i >= 0 {
			host = host[i+1:]
		}
		if name, port, ok := strings.Cut(host, ":"); ok && !portForm.MatchString(port) || len(name) > 255 {
			return false
		}
	}
	return true
}

// local is Place of a text that names no host: sqlite:FILE, memory:.
func local(raw string) string {
	scheme, _, _ := strings.Cut(raw, ":")
	switch scheme {
	case "sqlite", "memory", "webhooks":
		raw, _, _ = strings.Cut(raw, "?")
		return visible(raw)
	}
	return Word(raw)
}

// longest is the length of a word that is shown.
const longest = 80

// Word returns a word that was typed in the wrong place, quoted. A word that may hold a
// credential, such as a URL or NAME=VALUE, is counted and not shown.
func Word(s string) string {
	if n := utf8.RuneCountInString(s); n > longest || strings.ContainsAny(s, "@=") || strings.Contains(s, "//") {
		return fmt.Sprintf("(%d characters, not shown)", n)
	}
	return strconv.Quote(s)
}

// Shown reports whether Word shows s.
func Shown(s string) bool { return strings.HasPrefix(Word(s), `"`) }

// visible leaves out what a terminal would obey.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, s)
}

// noTLS is what the driver reports of its first try at a server without TLS,
// before it says what really was wrong.
const noTLS = "server refused TLS connection"

// OneLine joins lines and says nothing twice: a driver that tries a server with
// and without TLS, or at two addresses, reports one refusal as often.
func OneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(line), " ")
		if line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) > 1 && !strings.HasSuffix(lines[len(lines)-1], noTLS) {
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasSuffix(line, noTLS) })
	}
	var b strings.Builder
	for i, line := range lines {
		switch {
		case i == 0:
		case strings.HasSuffix(lines[i-1], ":"), strings.HasSuffix(lines[i-1], "."), strings.HasSuffix(lines[i-1], ","):
			b.WriteByte(' ')
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}
