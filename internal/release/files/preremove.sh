#!/bin/sh
# Stops and disables the relays when the package is removed, and leaves them alone when it is upgraded.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl stop postrider.service 'postrider@*.service'
	fi
	if command -v systemctl >/dev/null; then
		systemctl --quiet disable postrider.service
		for link in /etc/systemd/system/*.wants/postrider@*.service; do
			if [ -L "$link" ]; then
				systemctl --quiet disable "${link##*/}"
			fi
		done
	fi
	;;
esac
