package daemon

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"unsafe"
)

// The mapping is one of the test's own: of the program's mappings, what other tests
// of this process run meanwhile comes back at once.
func TestPagesOfTheStartAreGivenBack(t *testing.T) {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	size := 64 * os.Getpagesize()
	b, err := syscall.Mmap(int(exe.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(b) }()
	resident := func() int {
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		at := fmt.Sprintf("%x", uintptr(unsafe.Pointer(&b[0])))
		m := regexp.MustCompile(`(?m)^0*` + at + `-(?s:.*?)^Rss:\s+(\d+) kB`).FindSubmatch(smaps)
		if m == nil {
			t.Fatalf("no mapping at %s in %s", at, smaps)
		}
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var sum byte
	for i := 0; i < size; i += os.Getpagesize() {
		sum += b[i]
	}
	before := resident()
	releasePages()
	if after := resident(); before != size/1024 || after != 0 {
		t.Errorf("of %d KiB that were read (sum %d), %d KiB were resident, and %d KiB are now", size/1024, sum, before, after)
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
