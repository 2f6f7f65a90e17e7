package brokertest_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/postrider/postrider/broker/brokertest"
)

// TestBitesAlone runs every broken implementation on every case. Most are found
// by their own case alone, which shows that no case duplicates another;
// testdata/bites.txt lists the cases that find the rest.
func TestBitesAlone(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("in the matrix: each broken implementation on each case")
	}
	const path = "testdata/bites.txt"
	var mu sync.Mutex
	finders := make(map[string][]string)
	t.Run("all", func(t *testing.T) {
		for name, brk := range breakers() {
			for _, c := range brokertest.Cases() {
				t.Run(name+" "+c.Name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						if caught(t, c, brk) == nil {
							return
						}
						mu.Lock()
						defer mu.Unlock()
						finders[name] = append(finders[name], c.Name)
					})
				})
			}
		}
	})
	var lines strings.Builder
	for _, c := range brokertest.Cases() {
		found := finders[c.Name]
		slices.Sort(found)
		fmt.Fprintf(&lines, "%s: %s\n", c.Name, strings.Join(found, " "))
	}
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := lines.String(); got != string(want) {
		t.Errorf("%s is not what was found (POSTRIDER_UPDATE=1 writes it):\n%s", path, got)
	}
}
