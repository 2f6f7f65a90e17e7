package testserver

import (
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// account is the user a server runs as; nil is the current one.
type account struct {
	uid, gid uint32
}

// lookupAccount returns the first user of names that exists if this process runs as
// root, nil otherwise. Several servers refuse to run as root.
func lookupAccount(names ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		u, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("testserver: running as root and none of the users %v exists", names)
}

// home is the directory of one server. A temporary one has a lock that ends with this
// process, so that another process can detect and remove abandoned ones: a server that
// died with its test binary had no time to clean up.
type home struct {
	path string
	user *account
	lock *os.File // nil when the caller chose the directory
}

const homePrefix = "postrider-"

// inMemory is where Linux has a file system in memory.
const inMemory = "/dev/shm"

// newHome makes a directory for a server run by user. An empty dir means a temporary
// directory.
func newHome(dir string, user *account) (*home, error) { return newHomeIn(os.TempDir(), dir, user) }

// newHomeIn is newHome with the parent of a temporary directory.
func newHomeIn(parent, dir string, user *account) (*home, error) {
	h := &home{path: dir, user: user}
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("testserver: %w", err)
		}
		h.path = abs
		if err := os.MkdirAll(abs, 0o755); err != nil {
			return nil, fmt.Errorf("testserver: %w", err)
		}
		return h, h.own(abs)
	}

	sweep()
	lock, err := newLock(parent)
	if err != nil {
		return nil, err
	}
	h.lock = lock
	h.path = strings.TrimSuffix(lock.Name(), ".lock")
	if err := os.Mkdir(h.path, 0o755); err != nil {
		h.remove()
		return nil, fmt.Errorf("testserver: %w", err)
	}
	return h, h.own(h.path)
}

// homeOf makes a directory for a server run by the first of these users that exists.
func homeOf(dir string, users ...string) (*home, error) {
	user, err := lookupAccount(users...)
	if err != nil {
		return nil, err
	}
	return newHome(dir, user)
}

// tableHome is homeOf for a database. Tests make and drop tables by the thousand, for which a
// file system on a disk searches long: ext4 passes over each inode that was freed in the last
// seconds. So a temporary database is in memory where there is room, unless it is to wait for
// a disk or TMPDIR says where to put it.
func tableHome(dir string, o options, users ...string) (*home, error) {
	user, err := lookupAccount(users...)
	if err != nil {
		return nil, err
	}
	parent := os.TempDir()
	if !o.durable && !o.throughput && os.Getenv("TMPDIR") == "" && roomInMemory() {
		parent = inMemory
	}
	return newHomeIn(parent, dir, user)
}

// newLock makes and locks a file. If another process locks it between the two steps,
// newLock tries another name.
func newLock(parent string) (*os.File, error) {
	for {
		lock, err := os.CreateTemp(parent, homePrefix+"*.lock")
		if err != nil {
			return nil, fmt.Errorf("testserver: %w", err)
		}
		if tryLock(lock) == nil {
			if _, err := os.Stat(lock.Name()); err == nil {
				return lock, nil
			}
		}
		lock.Close()
	}
}

// own gives path to the server's user.
func (h *home) own(path string) error {
	if h.user == nil {
		return nil
	}
	if err := os.Chown(path, int(h.user.uid), int(h.user.gid)); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}

// mkdir makes a directory below h for the server's user.
func (h *home) mkdir(name string, mode os.FileMode) (string, error) {
	path := filepath.Join(h.path, name)
	if err := os.MkdirAll(path, mode); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	return path, h.own(path)
}

// write makes a file below h for the server's user.
func (h *home) write(name string, lines []string) (string, error) {
	path := filepath.Join(h.path, name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	return path, h.own(path)
}

// remove deletes a temporary directory. A directory that the caller chose stays.
func (h *home) remove() {
	if h.lock == nil {
		return
	}
	_ = os.RemoveAll(h.path)
	_ = os.Remove(h.lock.Name())
	h.lock.Close()
	h.lock = nil
}

// env returns the whole environment of a server, without any of the developer's
// settings.
func (h *home) env() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"HOME=" + h.path, "TMPDIR=" + h.path, "LANG=C.UTF-8", "TZ=UTC",
	}
}

// sweep removes the directories of servers whose test process has ended.
func sweep() {
	if !canLock {
		return
	}
	var locks []string
	for _, parent := range []string{os.TempDir(), inMemory} {
		some, _ := filepath.Glob(filepath.Join(parent, homePrefix+"*.lock")) // the pattern is good
		locks = append(locks, some...)
	}
	for _, name := range locks {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if tryLock(f) == nil {
			_ = os.RemoveAll(strings.TrimSuffix(name, ".lock"))
			_ = os.Remove(name)
		}
		f.Close()
	}
}
