#!/bin/sh
# What mpirun starts instead of ssh: the namespace of the host with this address, under a host name of
# its own. The command comes as words of a shell.
host=$(( ${1##*.} - 1 ))
shift
exec ip netns exec "host$host" unshare --uts sh -c "hostname host$host && $*"
