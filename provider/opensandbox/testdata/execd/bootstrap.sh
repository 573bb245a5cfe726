#!/bin/sh
# What a sandbox's container runs: the daemon, and the command that was asked for.
/opt/opensandbox/execd &
exec "$@"
