#!/bin/sh
# Forgets the units. dpkg's purge also removes the settings. The user and its group remain: they may be older than
# the package, own files elsewhere, or run another service.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
	fi
	;;
purge)
	rm -rf /etc/postrider
	;;
esac
