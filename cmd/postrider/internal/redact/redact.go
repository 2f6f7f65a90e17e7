// Package redact keeps passwords out of what the program prints: URLs, errors
// of drivers that quote them, and log lines.
package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mask stands where a secret was.
const Mask = "***"

// A parameter in a URL's query or in a keyword DSN ("host=h password=p").
var secretParam = regexp.MustCompile(`(?i)\b((?:ssl)?password|passfile|pass|pwd|token|secret|creds|seed|nkey|jwt|api_?key|access_?key)=('[^']*'|[^&\s;"'` + "`" + `]*)`)

// URL returns raw with everything that may be a secret masked: the user's
// password and the values of parameters named like one. It does not parse raw
// first, because url.Parse quotes what it cannot parse; a text that is no URL
// keeps only what cannot hold a password.
func URL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return secretParam.ReplaceAllString(raw, "$1="+Mask)
	}
	// A password may hold any character when nobody escaped it: everything up
	// to the last @ belongs to the user.
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, _, hasPassword := strings.Cut(rest[:at], ":")
		switch {
		case strings.ContainsAny(user, "/?#") || (!hasPassword && !namesUser(scheme)):
			rest = Mask + rest[at:]
		case hasPassword:
			rest = user + ":" + Mask + rest[at:]
		}
	}
	return scheme + "://" + secretParam.ReplaceAllString(rest, "$1="+Mask)
}

// Place is where a URL points to: scheme, host and path, without user and
// parameters.
func Place(raw string) string {
	raw, _, _ = strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return raw
	}
	return scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
}

// namesUser reports whether what stands alone before the @ is a name and not,
// as NATS allows, a token.
func namesUser(scheme string) bool {
	return scheme == "postgres" || scheme == "postgresql" || scheme == "kafka"
}

// Secrets are the passwords found in a set of URLs, in every spelling under
// which a library may print them.
type Secrets struct{ spellings []string }

// Find returns the secrets of URLs and keyword DSNs.
func Find(urls ...string) Secrets {
	var s Secrets
	for _, raw := range urls {
		for _, m := range secretParam.FindAllStringSubmatch(raw, -1) {
			s.add(strings.Trim(m[2], "'"))
		}
		scheme, rest, ok := strings.Cut(raw, "://")
		at := strings.LastIndexByte(rest, '@')
		if !ok || at < 0 {
			continue
		}
		if _, password, ok := strings.Cut(rest[:at], ":"); ok {
			s.add(password)
		} else if !namesUser(scheme) {
			s.add(rest[:at])
		}
	}
	// The longest first: a short secret inside a long one must not leave its rest.
	slices.SortFunc(s.spellings, func(a, b string) int { return len(b) - len(a) })
	return s
}

// minSecret is the shortest secret worth searching for: replacing every "a" of
// an error text would protect nobody and destroy the text.
const minSecret = 3

func (s *Secrets) add(secret string) {
	spellings := []string{secret, url.PathEscape(secret), url.QueryEscape(secret), url.UserPassword("", secret).String()[1:]}
	if plain, err := url.PathUnescape(secret); err == nil {
		spellings = append(spellings, plain)
	}
	for _, sp := range spellings {
		if len(sp) >= minSecret && !slices.Contains(s.spellings, sp) {
			s.spellings = append(s.spellings, sp, quoted(sp))
		}
	}
}

// quoted is how %q prints s, without the quotes.
func quoted(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

var userInfo = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'` + "`" + `]*@`)

// Text returns text on one line, each of its lines once, with the secrets masked,
// and with them whatever else looks like the secret part of a URL.
func (s Secrets) Text(text string) string {
	for _, sp := range s.spellings {
		text = strings.ReplaceAll(text, sp, Mask)
	}
	text = userInfo.ReplaceAllStringFunc(text, URL)
	text = secretParam.ReplaceAllString(text, "$1="+Mask)
	return OneLine(text)
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
