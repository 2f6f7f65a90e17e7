package daemon

import (
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

func TestPagesOfTheStartAreGivenBack(t *testing.T) {
	resident := func() int {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
		if m == nil {
			t.Fatalf("no RssFile in %s", status)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := resident()
	releasePages()
	if after := resident(); after > before*3/4 {
		t.Errorf("%d KiB of the program were resident, and %d KiB are now", before, after)
	}
}

// A position-independent program is relocated when it is loaded: parts of its
// file's mappings are written, made read-only, and stand in memory alone.
func TestPagesThatWereWrittenStay(t *testing.T) {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	b, err := syscall.Mmap(int(exe.Fd()), 0, 4*os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(b) }()
	copy(b[os.Getpagesize():], "relocated")
	if err := syscall.Mprotect(b, syscall.PROT_READ); err != nil {
		t.Fatal(err)
	}
	releasePages()
	if got := string(b[os.Getpagesize():][:len("relocated")]); got != "relocated" {
		t.Errorf("what was written is %q now", got)
	}
}
