package compat

import (
	"regexp/syntax"
	"strings"
)

// matches makes texts that match a pattern, and one that nearly does.
func matches(pattern string) []string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	var all []string
	for _, more := range []int{0, 1, 2, 5} {
		var b strings.Builder
		write(&b, re, more, 0)
		if b.Len() > maxText {
			break
		}
		all = append(all, b.String())
	}
	return append(all, all[0]+"~", strings.ToUpper(all[0]))
}

// write writes one text that matches; repetitions have more than their least number.
func write(b *strings.Builder, re *syntax.Regexp, more, deep int) {
	if deep > maxLevel || b.Len() > maxText {
		return
	}
	times := func(n int) {
		for range min(n, maxText) {
			write(b, re.Sub[0], more, deep+1)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			at := 2 * (more % (len(re.Rune) / 2))
			r := re.Rune[at]
			if r < ' ' && re.Rune[at+1] >= 'a' {
				r = 'a'
			}
			b.WriteRune(r)
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('a')
	case syntax.OpCapture:
		write(b, re.Sub[0], more, deep+1)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			write(b, sub, more, deep+1)
		}
	case syntax.OpAlternate:
		write(b, re.Sub[more%len(re.Sub)], more, deep+1)
	case syntax.OpStar, syntax.OpQuest:
		times(min(more, map[bool]int{true: 1, false: maxText}[re.Op == syntax.OpQuest]))
	case syntax.OpPlus:
		times(1 + more)
	case syntax.OpRepeat:
		n := re.Min + more
		if re.Max >= 0 {
			n = min(n, re.Max)
		}
		times(n)
	}
}

// ofFormat are texts of a format.
func ofFormat(name string) []string {
	switch name {
	case "date-time":
		return []string{"2024-02-29T12:30:00Z", "2024-02-29T12:30:00.5+01:00"}
	case "date":
		return []string{"2024-02-29"}
	case "time":
		return []string{"12:30:00Z"}
	case "duration":
		return []string{"P1D"}
	case "email", "idn-email":
		return []string{"a@example.com"}
	case "hostname", "idn-hostname":
		return []string{"example.com"}
	case "ipv4":
		return []string{"192.0.2.1"}
	case "ipv6":
		return []string{"2001:db8::1"}
	case "uri", "uri-reference", "iri", "iri-reference", "uri-template":
		return []string{"https://example.com/a", "a"}
	case "uuid":
		return []string{"019a8d2c-11aa-7c3e-9f00-2b5d1e6f7a80"}
	case "json-pointer":
		return []string{"/a"}
	case "relative-json-pointer":
		return []string{"0/a"}
	case "regex":
		return []string{"a*", "("}
	}
	return nil
}
