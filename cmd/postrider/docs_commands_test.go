package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
)

// commandLine is a command line that a document or a text of the program shows. Prose is a line in the middle of a
// sentence, which ends somewhere before the sentence does.
type commandLine struct {
	file, line string
	prose      bool
}

// notChecked are lines that look like commands of the program and are not, with the reason.
func notChecked() map[string]string {
	return map[string]string{
		"postrider deploy/helm/postrider --values relay.yaml": "the name of a Helm release",
		"postrider books ":                                     "the name of a lock of PostgreSQL",
		"postrider migrate ":                                   "the name of a lock of PostgreSQL",
		"postrider source of VALUE":                            "the name of a connection",
		"postrider sink":                                       "the name of a connection",
		"postrider tail":                                       "the name of a session that reads the log",
		"postrider admin":                                      "the name of an instance that holds a lease",
		"postrider binary; built when empty":                   "what a flag of the proof is about",
		"postrider adopt: ":                                    "the beginning of a comment in a table",
		`postrider VALUE" "Postrider"`:                         "the heading of a manual page",
		"postrider resume VALUE --reason WHY":                  "the program writes flags and a value here",
		"postrider VALUE --lane 12 --reason \"incident 4711\"": "pause or resume: both are in docs/runbook.md",
		`postrider VALUE --key customer-7 --reason "their importer is under repair"`: "pause or resume: both are in docs/runbook.md",
	}
}

// placeholder is a word that stands for a value.
var placeholder = regexp.MustCompile(`^(<[^>]+>|\.\.\.|\$\{?\w+\}?|[A-Z][A-Z0-9_]*([-/:.@][A-Z0-9_]+)*)$`)

// checkShown returns what is wrong with a command line: its command, a flag, a value or the number of arguments.
// Nothing is run.
func checkShown(s commandLine) error {
	words := split(s.line)[1:]
	if s.prose {
		words = beforeTheNextPart(words)
	}
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	root.InitDefaultVersionFlag()
	cmd := root
	for len(words) > 0 && cmd.HasSubCommands() {
		at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] })
		if at < 0 {
			break
		}
		cmd, words = cmd.Commands()[at], words[1:]
	}
	if cmd == root && (len(words) == 0 || !strings.HasPrefix(words[0], "-")) {
		return errors.New("unknown command")
	}
	if cmd.SuggestionsMinimumDistance = 2; len(words) > 0 && !strings.HasPrefix(words[0], "-") && len(cmd.SuggestionsFor(words[0])) > 0 {
		return fmt.Errorf("unknown command %s of %s", words[0], cmd.CommandPath())
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(nil); err != nil { // merges the flags of its parents
		return err
	}
	named := len(words) == 0 // without arguments it names the command
	args, err := checkFlags(cmd, words, s.prose)
	if err != nil || named || slices.Contains(args, "...") {
		return err
	}
	err = cmd.ValidateArgs(args)
	for n := 1; s.prose && err != nil && n < 4; n++ { // an argument may be missing, and none may be too many
		err = cmd.ValidateArgs(append(slices.Clone(args), slices.Repeat([]string{"x"}, n)...))
	}
	return err
}

// beforeTheNextPart returns the words up to the first one with a sign behind it, without that sign.
func beforeTheNextPart(words []string) []string {
	for i, word := range words {
		if bare := strings.TrimRight(word, ",;:.)"); bare != word && word != "..." {
			if words = append(slices.Clone(words[:i]), bare); bare == "" {
				words = words[:i]
			}
			break
		}
	}
	return words
}

// checkFlags parses the flags among the words and returns the other words, in a sentence up to the first one that
// stands for no value.
func checkFlags(cmd *cobra.Command, words []string, prose bool) (args []string, err error) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if !strings.HasPrefix(word, "-") || word == "-" {
			if prose && !placeholder.MatchString(word) {
				return args, nil
			}
			args = append(args, word)
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		var f *pflag.Flag
		switch {
		case strings.HasPrefix(word, "--"):
			f = cmd.Flags().Lookup(name)
		case len(name) == 1:
			f = cmd.Flags().ShorthandLookup(name)
		}
		switch {
		case f == nil:
			return nil, fmt.Errorf("unknown flag: %s", word)
		case !given && f.NoOptDefVal != "":
			value = f.NoOptDefVal
		case !given && len(words) == 0 && prose: // the sentence is about the flag
			return args, nil
		case !given && len(words) == 0:
			return nil, fmt.Errorf("%s has no value", word)
		case !given:
			value, words = words[0], words[1:]
		}
		if err := checkValue(cmd, f, value); err != nil {
			return nil, fmt.Errorf("--%s %s: %w", name, value, err)
		}
	}
	return args, nil
}

// checkValue sets a flag, and knows the words of flags that the command itself reads.
func checkValue(cmd *cobra.Command, f *pflag.Flag, value string) error {
	if placeholder.MatchString(value) {
		return nil
	}
	if cmd.Name() == "doctor" && (f.Name == "only" || f.Name == "skip") {
		for _, name := range strings.Split(value, ",") {
			if !slices.ContainsFunc(admin.Checks(), func(c admin.CheckInfo) bool { return c.Name == name }) {
				return fmt.Errorf("unknown check %q", name)
			}
		}
	}
	return f.Value.Set(value)
}

// shells returns the commands of the program in a line of a shell, with what stands before and around them left out.
func shells(line string) (found []string) {
	line = regexp.MustCompile(`\bsudo (-u \S+ )?`).ReplaceAllString(line, "")
	quote, from := rune(0), 0
	cut := func(to int) {
		part := line[from:to]
		if at := regexp.MustCompile(`(^|[\s/"])postrider\s+[-\w.$<]`).FindStringIndex(part); at != nil {
			found = append(found, strings.TrimSpace(part[strings.Index(part[at[0]:], "postrider")+at[0]:]))
		}
	}
	for i, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case quote == 0 && r == '#' && (i == 0 || line[i-1] == ' '):
			cut(i)
			return found
		case quote == 0 && strings.ContainsRune("|&;>)", r) && i > 0 && !strings.HasPrefix(line[i-1:], "->"):
			cut(i)
			from = i + 1
		}
	}
	cut(len(line))
	return found
}

// shownIn returns the command lines of a document: those of its fenced blocks and of the code in its text.
func shownIn(file, text string) (all []commandLine) {
	add := func(lines ...string) {
		for _, line := range lines {
			all = append(all, commandLine{file: file, line: line})
		}
	}
	blocks := regexp.MustCompile("(?ms)^[ \t]*```[^\n]*\n(.*?)^[ \t]*```")
	if filepath.Ext(file) == ".md" {
		for _, m := range blocks.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(strings.ReplaceAll(m[1], "\\\n", " ")) {
				add(shells(strings.TrimSpace(line))...)
			}
		}
		text = blocks.ReplaceAllString(text, "")
	} else { // a line of a workflow, a template or a manifest
		for _, m := range regexp.MustCompile(`(?m)^[\s#]*(?:- )?(?:run: )?(postrider [a-z].*)$`).FindAllStringSubmatch(text, -1) {
			add(shells(m[1])...)
		}
	}
	for _, m := range regexp.MustCompile("`([^`\n]+(?:\n[^`\n]+)?)`").FindAllStringSubmatch(text, -1) {
		if code := strings.Join(strings.Fields(m[1]), " "); regexp.MustCompile(`^([A-Z_]+=\S+ )*postrider [a-z-]`).MatchString(code) {
			for _, line := range shells(code) { // a decision may name a flag without its value
				all = append(all, commandLine{file, line, strings.HasPrefix(file, filepath.Join("docs", "adr"))})
			}
		}
	}
	return all
}

// explained is what a help text has to the right of a command.
var explained = regexp.MustCompile(`\s{3,}[^-\s].*$`)

var verb = regexp.MustCompile(`%(\[\d+\])?[-+#0-9.]*[a-zA-Z]`)

// shownInGo returns the command lines of the texts and the comments of a Go file.
func shownInGo(file string, parsed *ast.File) (all []commandLine) {
	add := func(text string) {
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			if whole := regexp.MustCompile(`^\s+postrider [a-z]`).MatchString(line); whole {
				line = explained.ReplaceAllString(strings.TrimSpace(line), "")
				for _, l := range shells(line) {
					all = append(all, commandLine{file: file, line: l})
				}
				continue
			}
			for i, part := range strings.Split(line, "`") {
				if i%2 == 1 {
					if strings.HasPrefix(part, "postrider ") {
						all = append(all, commandLine{file: file, line: part})
					}
					continue
				}
				for _, at := range regexp.MustCompile(`(^|[\s("])postrider [a-zA-Z]`).FindAllStringIndex(part, -1) {
					from := at[0] + strings.Index(part[at[0]:], "postrider")
					next := regexp.MustCompile(`\spostrider `).FindStringIndex(part[from+9:])
					to := len(part)
					if next != nil {
						to = from + 9 + next[0]
					}
					all = append(all, commandLine{file, part[from:to], true})
				}
			}
		}
	}
	for _, group := range parsed.Comments {
		all = append(all, shownComment(file, group.Text())...)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		if _, ok := n.(*ast.BasicLit); !ok {
			if b, ok := n.(*ast.BinaryExpr); !ok || b.Op != token.ADD {
				return true
			}
		}
		text, literal := folded(e)
		if literal && strings.Contains(text, "postrider ") {
			add(text)
		}
		return false
	})
	return all
}

// shownComment returns what a comment shows: code in its text, and indented lines.
func shownComment(file, text string) (all []commandLine) {
	for line := range strings.Lines(text) {
		if regexp.MustCompile(`^\s+postrider [a-z]`).MatchString(line) {
			line = explained.ReplaceAllString(strings.TrimSpace(line), "")
			all = append(all, commandLine{file: file, line: line})
		}
	}
	return append(all, shownIn(file+".md", text)...)
}

// folded joins the literals of a sum; what is computed becomes VALUE.
func folded(e ast.Expr) (text string, literal bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "VALUE", false
		}
		text, err := strconv.Unquote(e.Value)
		return verb.ReplaceAllString(text, "VALUE"), err == nil
	case *ast.BinaryExpr:
		left, l := folded(e.X)
		right, r := folded(e.Y)
		return left + right, l || r
	case *ast.ParenExpr:
		return folded(e.X)
	}
	return "VALUE", false
}

// treeFiles returns the files of the tree by their paths in it, but those of fixtures and of other programs.
func treeFiles(t *testing.T) (files []string) {
	t.Helper()
	top := filepath.Join("..", "..")
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := filepath.Rel(top, name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"node_modules", "testdata", "dist", "bin", "tools"}, d.Name())):
			return filepath.SkipDir
		case !d.IsDir():
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// documentFiles are the pages, manifests and rules that users read. Usage lines are made from the commands themselves.
func documentFiles(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(treeFiles(t), func(file string) bool {
		ext := filepath.Ext(file)
		written := ext == ".md" || strings.HasPrefix(file, "deploy") && ext != ".json" || strings.HasPrefix(file, "docs") && ext == ".yml"
		return !written || file == filepath.Join("docs", "reference", "commands.md")
	})
}

// allShown reads the documents and the texts of the program.
func allShown(t *testing.T) (all []commandLine) {
	t.Helper()
	for _, file := range treeFiles(t) {
		if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", file), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, shownInGo(file, parsed)...)
	}
	for _, file := range documentFiles(t) {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, shownIn(file, string(text))...)
	}
	return all
}

// TestDocsCommands: every command line that documents, help texts, errors and remedies show exists as it is shown:
// command, flags, values and the number of arguments.
func TestDocsCommands(t *testing.T) {
	all, files := allShown(t), map[string]int{}
	skip, skipped := notChecked(), map[string]bool{}
	for _, s := range all {
		files[s.file]++
		if skip[s.line] != "" {
			skipped[s.line] = true
			continue
		}
		if err := checkShown(s); err != nil {
			t.Errorf("%s: `%s`: %v", s.file, s.line, err)
		}
	}
	for line := range skip {
		if !skipped[line] {
			t.Errorf("%q is shown nowhere: remove it from the list", line)
		}
	}
	if len(all) < 400 || files["README.md"] < 9 || files["docs/runbook.md"] < 50 {
		t.Errorf("%d lines found, %d of them in README.md, %d in docs/runbook.md", len(all), files["README.md"], files["docs/runbook.md"])
	}
}

// TestDocsCommandsBite: wrong lines are found where they are shown, and reported.
func TestDocsCommandsBite(t *testing.T) {
	for _, bad := range []string{
		"postrider staus",
		"postrider dead lst",
		"postrider dead lst --all",
		"postrider status --lane",
		"postrider status --fail-if-lag",
		"postrider status --fail-if-lag soon",
		"postrider status --limit 3",
		"postrider audit --every 1",
		"postrider status orders",
		"postrider pipe add --from beginning",
		"postrider pipe add a b --from beginning",
		"postrider doctor --only lag,lagg",
		"postrider -x",
	} {
		found := shownIn("x.md", "```sh\nPOSTRIDER_STORE=x "+bad+" | cat  # why\n```\n")
		if len(found) != 1 || found[0].line != bad {
			t.Errorf("found %+v where %q is shown", found, bad)
			continue
		}
		if checkShown(found[0]) == nil {
			t.Errorf("%q is not reported", bad)
		}
	}
	for text, want := range map[string]int{
		"Use `postrider dead list --all`, then\n`postrider dead retry\nSEQ`.": 2,
		"```yaml\nrun: postrider migrate && postrider relay\n```":             2,
		"`psql postrider`": 0,
	} {
		if found := shownIn("x.md", text); len(found) != want {
			t.Errorf("%q shows %d lines: %+v", text, len(found), found)
		}
	}
	for text, want := range map[string]bool{
		`"run postrider pipe resum " + x`:                                              true,
		`"start it: postrider relay; if it runs, read on"`:                             false,
		`"postrider dead show %d, then postrider dead retry " + "--setquence, or not"`: true,
		`"postrider status names them"`:                                                false,
		`"postrider audit A B"`:                                                        true,
		`"use ` + "`postrider skip KEY`" + `"`:                                         true,
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nvar y = "+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		wrong := false
		for _, s := range shownInGo("x.go", parsed) {
			wrong = wrong || checkShown(s) != nil
		}
		if wrong != want {
			t.Errorf("%s: reported is %v", text, wrong)
		}
	}
}
