package main

import (
	"context"

	"github.com/postrider/postrider/internal/testserver"
)

func patroniPresent() error {
	_, err := testserver.PatroniTree()
	return err
}

// patroni unpacks Debian's Patroni and etcd, with their Python and libraries, beside
// the system: no maintainer script runs and no service starts. PostgreSQL and its
// client tools are the system's.
func patroni(ctx context.Context, in *installer) error {
	const script = `set -e
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
mmdebstrap --mode=root --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --include=patroni,python3-etcd,etcd-server bookworm tree "deb $mirror bookworm main"
mkdir -p usr/bin usr/lib lib
mv tree/usr/lib/python3 tree/usr/lib/python3.11 usr/lib/
for d in tree/usr/lib/x86_64-linux-gnu tree/lib/x86_64-linux-gnu; do
  if [ -d "$d" ] && [ ! -L "$d" ]; then cp -a "$d/." lib/; fi
done
mv tree/usr/bin/etcd tree/usr/bin/patroni usr/bin/
mv tree/usr/bin/python3.11 usr/bin/python3.elf
rm -rf tree
cat > usr/bin/python3 <<'END'
#!/bin/sh
d=${0%/*}/../..
exec "$d/lib/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$d/lib" "${0%/*}/python3.elf" "$@"
END
chmod 755 usr/bin/python3`
	if err := in.need(ctx, "mmdebstrap", "mmdebstrap"); err != nil {
		return err
	}
	return in.fresh(testserver.Patroni, func(dir string) error { return in.run(ctx, dir, nil, "sh", "-c", script) })
}
