package brokertest_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/postrider/postrider/broker/brokertest"
)

// TestReadme: the README has a bug for every case, and names existing cases only.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, m := range regexp.MustCompile("`((?:sink|source)/[a-z-]+)`").FindAllSubmatch(text, -1) {
		named[string(m[1])] = true
	}
	for _, c := range brokertest.Cases() {
		if !named[c.Name] {
			t.Errorf("no known bug is given for case %s", c.Name)
		}
		delete(named, c.Name)
	}
	for name := range named {
		t.Errorf("there is no case %s", name)
	}
}
