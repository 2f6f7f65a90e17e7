package daemon

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// releasePages takes the program's own code and constants out of the resident
// memory, see madvise(2). They stay in the page cache, and what a relay continues
// using comes back from there page by page; the rest is what only the start needed.
//
// A mapping with a page that is not the file's any more is left alone, for that
// page is nowhere else: a position-independent program is relocated when it is
// loaded, and a debugger writes its breakpoints into the code.
func releasePages() {
	const dontNeed = 4 // MADV_DONTNEED: of the file's own pages it forgets nothing
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	var start, size uint64
	pure := 0 // how many of the two lines show no page of that kind
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case strings.Contains(fields[0], "-"): // 00400000-01440000 r-xp 00000000 fe:00 1234   /usr/bin/postrider
			start, size, pure = 0, 0, 0
			if len(fields) == 6 && fields[5] == exe && (fields[1] == "r-xp" || fields[1] == "r--p") {
				start, size = extent(fields[0])
			}
		case len(fields) == 3 && fields[1] == "0" && (fields[0] == "Anonymous:" || fields[0] == "Swap:"):
			pure++
		case fields[0] == "VmFlags:" && size > 0 && pure == 2: // the last line of a mapping
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(start), uintptr(size), dontNeed)
		}
	}
}

// extent reads FROM-TO; of what cannot be read the size is 0.
func extent(text string) (start, size uint64) {
	from, to, _ := strings.Cut(text, "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil || start >= end {
		return 0, 0
	}
	return start, end - start
}
