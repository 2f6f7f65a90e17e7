#!/bin/sh
# Loads the units, and restarts the relays that an upgrade finds running. Nothing is enabled or started:
# a new relay needs its settings first.
set -e
# dpkg names the version that it replaces, rpm counts the versions that are there.
upgrade=no
if [ "$1" = configure ] && [ -n "$2" ]; then
	upgrade=yes
elif [ "$1" = 2 ]; then
	upgrade=yes
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ "$upgrade" = yes ]; then
		# A restarted relay waits for its database: do not wait for the relay.
		systemctl try-restart --no-block postrider.service 'postrider@*.service'
	fi
fi
