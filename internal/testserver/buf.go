package testserver

import "path/filepath"

// BufVersion is the version of buf that the matrix compares changes of Protobuf schemas with.
const BufVersion = "1.75.0"

// Buf returns the path of the program buf.
func Buf() (string, error) {
	if cache, err := CacheDir(); err == nil {
		if path := filepath.Join(cache, "buf-"+BufVersion, "buf"); isFile(path) {
			return path, nil
		}
	}
	return "", &MissingError{Server: "buf " + BufVersion, Fix: "make servers ALL=1"}
}
