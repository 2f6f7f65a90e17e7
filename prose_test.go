package postrider_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// These tests find what a machine can find of prose that a reader parses twice. The
// rest is read.

// habit is a pattern that no text of ours has, an example, and what to write.
type habit struct {
	pattern    *regexp.Regexp
	bad, write string
}

func habitsOf(rows [][3]string) (all []habit) {
	for _, row := range rows {
		all = append(all, habit{regexp.MustCompile(`(?m)` + row[0]), row[1], row[2]})
	}
	return all
}

func habits() []habit {
	return habitsOf([][3]string{
		{`\b(goes|go|going|went|gone) on\b`, "the key goes on", "continues, resumes, is released"},
		{`\b(comes?|came) again\b`, "the message comes again", "is sent again, returns"},
		{`\bthe one that\b`, "it is the one that leads", "name the thing"},
		{`\bnothing that\b`, "it writes nothing that matters", "name the thing"},
		{`\bmend(s|ed|ing)?\b`, "mend the cause", "repair"},
		{`\bheed(s|ed|ing)?\b`, "it heeds its context", "obeys, ignores"},
		{`\b(stands?|stood) still\b`, "a key stands still", "is blocked, does not move"},
		{`\bis none\b`, "act is none", "is missing, is unknown, is invalid"},
		{`\b(has|have) such\b|\bthere is no such\b`, "no message has such", "does not exist, contains"},
		{`\blets? us\b`, "the broker lets us not in", "rejects our credentials"},
		{`\bworks? again\b`, "it works again", "recovered, reachable again"},
		{`\bnow and then\b`, "now and then", "name the interval"},
		{`\bwithout a word\b`, "it waits without a word", "without a log line"},
		{`\b(is|are) nothing\b`, "it is nothing", "is empty, is discarded"},
		{`(?:^|[.:;] )Who(ever)? \w+ [^?\n]*$`, "Who reads it sees all", "the reader, the caller, the client"},
		{`\bnot known\b`, "the lag is not known", "unknown"},
		{`\b(a|that) which\b`, "that which was sent", "name the thing"},
		{`\bfailed to\b`, "failed to read", "the attempt, a colon, what is wrong"},
	})
}

// inStrings are habits that texts of the program do not have; comments and documents may.
func inStrings() []habit {
	return habitsOf([][3]string{
		{`\bstands?\b`, "it stands in the journal", "is"},
		{`\b(says?|tells?)\b`, "the file says so", "has, reports, names"},
		{`\b(it|this|that|which|what|id|body|topic|text|value|name|key|file|\w+s|%[qs]) is no [a-zA-Z]`, "it is no number", "is not a, must be a"},
		{`(?i)\b(somebody|whoever)\b`, "somebody else tends it", "name the process or the person"},
		{`\bis there (more|twice|\d|%d)`, "prefix is there 2 times", "is given"},
		{`^(Asks|Takes|Shows|Prints|Lists|Makes|Says|Looks|Removes|Sends|Reads|Writes|Tells|Puts|Gives) `, "Asks the database", "an imperative verb"},
	})
}

// inPages are habits that neither texts of the program nor documents have; comments may.
func inPages() []habit {
	return habitsOf([][3]string{
		{`\banew\b`, "make it anew", "again"},
		{`(?i)\bwhoever\b`, "whoever runs it", "name the process or the person"},
		{`\b(lies?|lay) (in|at|with|below|above|behind|there)\b`, "what lies in the outbox", "is"},
		{`\bas it (comes|came|happens)\b`, "before or behind, as it happens", "say which, or that both occur"},
		{`\bis to be\b`, "which is to be later", "must be"},
		{`\b(is|are) away\b`, "the broker is away", "is down, is unreachable, is missing"},
		{`\bat hand\b`, "no account was at hand", "available"},
		{`\band the like\b`, "headers and the like", "and similar names, or list them"},
		{`\bstands? (in|at|behind|above|there|before)\b`, "what stands in the table", "is"},
		{`, else (a|the|an|your|any|no|it|he|they)\w* `, "ask, else anybody enters", "otherwise, or"},
	})
}

// inLogs are habits that the messages of logs do not have.
func inLogs() []habit {
	return habitsOf([][3]string{
		{`[:;.]`, "relay stopped: why", "an event; details are attributes"},
		{`(?i)^(the|an?) `, "the relay stopped", "relay stopped"},
		{`\b(is|are|has|have|does|do|cannot|can|will|fails|works|waits|needs|trying|comes)\b`, "relay is stopped", "the past tense"},
		{`^(\S+ ){7,}\S+$`, "one two three four five six seven eight", "at most seven words"},
	})
}

// found returns the lines of text that have a habit.
func found(text string, all ...habit) (lines []string) {
	for _, h := range all {
		for _, at := range h.pattern.FindAllStringIndex(text, -1) {
			begin := strings.LastIndex(text[:at[0]], "\n") + 1
			line, _, _ := strings.Cut(text[begin:], "\n")
			lines = append(lines, fmt.Sprintf("%q: write: %s", strings.TrimSpace(line), h.write))
		}
	}
	return lines
}

func TestProseHabitsBite(t *testing.T) {
	const good = "Relays share the lanes of an outbox. When one dies, others take its lanes over."
	for _, h := range slices.Concat(habits(), inStrings(), inPages(), inLogs()) {
		if len(found(h.bad, h)) == 0 {
			t.Errorf("%s does not find %q", h.pattern, h.bad)
		}
	}
	if lines := found(good, slices.Concat(habits(), inStrings(), inPages())...); len(lines) > 0 {
		t.Errorf("found in good prose: %v", lines)
	}
	if lines := found("lease lost", inLogs()...); len(lines) > 0 {
		t.Errorf("found in a good event: %v", lines)
	}
}

// TestProseOfDocuments reads every document but decisions, which are never edited.
func TestProseOfDocuments(t *testing.T) {
	code, all := regexp.MustCompile("(?ms)^```.*?^```|`[^`\\n]*`"), slices.Concat(habits(), inPages())
	for _, file := range documents(t) {
		if strings.HasPrefix(file, "docs/adr/") || path.Ext(file) != ".md" {
			continue
		}
		for _, line := range found(code.ReplaceAllString(read(t, file), ""), all...) {
			t.Errorf("%s: %s", file, line)
		}
	}
}

// TestProseOfTexts reads every text in the code that is not of a test: errors, logs, help.
func TestProseOfTexts(t *testing.T) {
	texts, inLogs, inTexts := 0, inLogs(), slices.Concat(habits(), inStrings(), inPages())
	for _, s := range goFiles(t) {
		if s.isTest() || isSuite(s.name) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if event, ok := logged(call); ok {
					for _, line := range found(event, inLogs...) {
						t.Errorf("%s: log: %s", s.name, line)
					}
				}
			}
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING || !strings.Contains(l.Value, " ") {
				return true
			}
			text, err := strconv.Unquote(l.Value)
			if err != nil || isSQL(text) {
				return true
			}
			texts++
			for _, line := range found(text, inTexts...) {
				t.Errorf("%s: %s", s.name, line)
			}
			return true
		})
	}
	if texts < 1000 {
		t.Errorf("only %d texts were read", texts)
	}
}

// isSuite reports whether a file is of a conformance suite, the simulation or the proof, whose texts only we read.
func isSuite(name string) bool {
	return regexp.MustCompile(`(^|/)(\w+test|sim|bench|proof|testserver|faultproxy|lab|promises)/`).MatchString(name)
}

func isSQL(text string) bool {
	return regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|GRANT|FROM|WHERE|BEGIN)\b`).MatchString(text)
}

// logged returns the message of a call that writes to a log.
func logged(call *ast.CallExpr) (string, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !regexp.MustCompile(`^(Debug|Info|Warn|Error|Log|LogAttrs)(Context)?$`).MatchString(sel.Sel.Name) || sel.Sel.Name == "Error" && len(call.Args) == 3 && isHTTP(sel.X) {
		return "", false
	}
	for i, arg := range call.Args {
		if l, ok := arg.(*ast.BasicLit); ok && l.Kind == token.STRING && i < 3 {
			text, err := strconv.Unquote(l.Value)
			return text, err == nil
		}
	}
	return "", false
}

func isHTTP(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == "http"
}

// TestProseOfComments reads every comment of the tree, those of tests too.
func TestProseOfComments(t *testing.T) {
	all := habits()
	for _, s := range goFiles(t) {
		for _, group := range s.ast.Comments {
			for _, line := range found(group.Text(), all...) {
				t.Errorf("%s: %s", s.name, line)
			}
		}
	}
}
