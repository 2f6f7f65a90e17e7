package main

import (
	"context"

	"github.com/postrider/postrider/internal/testserver"
)

func rabbitPresent(version string) func() error {
	return func() error {
		_, err := testserver.RabbitMQTree(version)
		return err
	}
}

// rabbit unpacks a Debian release's RabbitMQ, with its Erlang and libraries, beside the
// system. Erlang's programs start through the tree's own loader, so the tree can be
// moved.
func rabbit(version, release string) func(context.Context, *installer) error {
	const script = `set -e
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
mmdebstrap --mode=root --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' --include=rabbitmq-server "$1" tree "deb $mirror $1 main"
mkdir -p usr/lib lib
mv tree/usr/lib/erlang tree/usr/lib/rabbitmq usr/lib/
for d in tree/usr/lib/x86_64-linux-gnu tree/lib/x86_64-linux-gnu; do
  if [ -d "$d" ] && [ ! -L "$d" ]; then cp -a "$d/." lib/; fi
done
rm -rf tree
find usr/lib/erlang -type f -perm -100 ! -name '*.so' | while read -r f; do
  [ "$(head -c 4 "$f" | tail -c 3)" = ELF ] || continue
  mv "$f" "$f.elf"
  cat > "$f" <<'END'
#!/bin/sh
d=${0%/*}
while [ ! -e "$d/lib/ld-linux-x86-64.so.2" ]; do d=$d/..; done
exec "$d/lib/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$d/lib" "$0.elf" "$@"
END
  chmod 755 "$f"
done
ln -s usr/lib/erlang/erts-*/bin erts
cd erts
cat > erl <<'END'
#!/bin/sh
BINDIR=$(cd "${0%/*}" && pwd -P)
ROOTDIR=${BINDIR%/erts-*}
EMU=beam
PROGNAME=erl
export BINDIR ROOTDIR EMU PROGNAME
exec "$BINDIR/erlexec" "$@"
END
chmod 755 erl`
	return func(ctx context.Context, in *installer) error {
		if err := in.need(ctx, "mmdebstrap", "mmdebstrap"); err != nil {
			return err
		}
		return in.fresh("rabbitmq-"+version, func(dir string) error {
			return in.run(ctx, dir, nil, "sh", "-c", script, "sh", release)
		})
	}
}
