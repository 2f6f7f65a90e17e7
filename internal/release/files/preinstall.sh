#!/bin/sh
# Creates the user of the relay. Its files in /etc/postrider belong to the group.
set -e
if ! getent group postrider >/dev/null; then
	groupadd --system postrider
fi
if ! getent passwd postrider >/dev/null; then
	useradd --system --gid postrider --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin postrider
fi
