// Package pgdata copies data directories of PostgreSQL.
package pgdata

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// Copy copies the data directory of a server that nobody has started, and gives the copy an
// identifier of its own. own gives a file or directory to the server's user.
func Copy(from, to string, own func(path string) error) error {
	if err := copyTree(from, to, own); err != nil {
		return err
	}
	return identify(to)
}

func copyTree(from, to string, own func(path string) error) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() {
			err = os.Mkdir(target, info.Mode().Perm())
		} else {
			var content []byte
			if content, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(target, content, info.Mode().Perm())
			}
		}
		if err != nil {
			return err
		}
		return own(target)
	})
}

// identify gives the data an identifier that no other server has. It is the first number of
// global/pg_control, whose last one is the CRC of what is before, and it is in the long header of
// the log's first page (src/include/catalog/pg_control.h and access/xlog_internal.h of PostgreSQL
// 15 to 18).
func identify(data string) error {
	const idInPage = 24
	log := filepath.Join(data, "pg_wal", "000000010000000000000001")
	control := filepath.Join(data, "global", "pg_control")
	b, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	table, end := crc32.MakeTable(crc32.Castagnoli), 8
	for crc32.Checksum(b[:end], table) != binary.LittleEndian.Uint32(b[end:]) {
		if end += 4; end+4 > len(b) || string(page[idInPage:idInPage+8]) != string(b[:8]) {
			return fmt.Errorf("%s and %s are not of a known version of PostgreSQL", control, log)
		}
	}
	if _, err := rand.Read(b[:7]); err != nil {
		return err
	}
	copy(page[idInPage:], b[:8])
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], table))
	return errors.Join(os.WriteFile(control, b, 0o600), os.WriteFile(log, page, 0o600))
}
