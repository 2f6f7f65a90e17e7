package postrider_test

import (
	"go/ast"
	"go/doc"
	"path"
	"strings"
	"testing"
)

// A folder is a room whose content a reader can remember.
const (
	roomFiles = 25
	roomLines = 4000
)

// crowdedRooms may hold more lines than a room. Each has its reason.
func crowdedRooms() map[string]string {
	return map[string]string{
		"store/storetest": "a contract suite: every case that a store must pass, and nothing else",
	}
}

func TestFoldersAreRooms(t *testing.T) {
	files, lines := map[string]int{}, map[string]int{}
	for _, s := range goFiles(t) {
		if s.isTest() || ast.IsGenerated(s.ast) {
			continue
		}
		files[path.Dir(s.name)]++
		lines[path.Dir(s.name)] += s.lines
	}
	crowded := crowdedRooms()
	for dir, n := range files {
		_, excepted := crowded[dir]
		fits := n <= roomFiles && lines[dir] <= roomLines
		switch {
		case !fits && !excepted:
			t.Errorf("%s has %d files and %d lines without tests, more than %d and %d: move what has a topic of its own into a room below",
				dir, n, lines[dir], roomFiles, roomLines)
		case fits && excepted:
			t.Errorf("%s has %d files and %d lines and fits by now: remove it from crowdedRooms in meta_rooms_test.go", dir, n, lines[dir])
		}
		delete(crowded, dir)
	}
	for dir := range crowded {
		t.Errorf("%s is gone: remove it from crowdedRooms in meta_rooms_test.go", dir)
	}
}

// A package that one sentence cannot tell has two topics.
func TestPackagesHaveOneSentence(t *testing.T) {
	const words = 40
	told := map[string][]source{}
	for _, s := range goFiles(t) {
		if s.isTest() {
			continue
		}
		dir := path.Dir(s.name)
		if _, seen := told[dir]; !seen {
			told[dir] = nil
		}
		if s.ast.Doc != nil && strings.TrimSpace(s.ast.Doc.Text()) != "" {
			told[dir] = append(told[dir], s)
		}
	}
	for dir, files := range told {
		if len(files) != 1 {
			t.Errorf("%s: %d files have a comment of the package, want it in one", dir, len(files))
			continue
		}
		f := files[0].ast
		sentence := new(doc.Package).Synopsis(f.Doc.Text())
		begin := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			begin = "Command "
		}
		if n := len(strings.Fields(sentence)); !strings.HasPrefix(sentence, begin) || n > words {
			t.Errorf("%s: the comment of the package begins with %q (%d words), want one sentence of at most %d that begins with %q", files[0].name, sentence, n, words, begin)
		}
	}
}
