package testserver

import (
	"os/exec"
	"path/filepath"
)

// The functions below find the programs that run the examples in other languages. Each
// error names the missing program and the command that installs it.

// Node returns the paths of node and npm.
func Node() (node, npm string, err error) {
	if node, err = program("node", "Node.js", "npm"); err == nil {
		npm, err = program("npm", "npm", "npm")
	}
	return node, npm, err
}

// Python returns the path of a Python 3 that can make virtual environments.
func Python() (string, error) {
	python, err := program("python3", "Python 3", "python3-venv libpq5")
	if err != nil {
		return "", err
	}
	if exec.Command(python, "-c", "import venv, ensurepip, sys; assert sys.version_info >= (3, 10)").Run() != nil {
		return "", &MissingError{Server: "Python 3.10 with venv", Fix: "apt-get install python3-venv libpq5"}
	}
	return python, nil
}

// JDK returns the paths of java, whose JDK compiles too, and of Maven.
func JDK() (java, maven string, err error) {
	if _, err = program("javac", "JDK 17", "default-jdk-headless"); err == nil {
		java, err = program("java", "JDK 17", "default-jdk-headless")
	}
	if err == nil {
		maven, err = program("mvn", "Maven", "maven")
	}
	return java, maven, err
}

func program(name, what, packages string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &MissingError{Server: what, Fix: "apt-get install " + packages}
	}
	return path, nil
}

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
