"""Hosts as network namespaces, joined by veth pairs and a bridge, each limited by `tc … tbf`.

Linux, with iproute2 and util-linux, as root or where users may make namespaces. Everything lives in
namespaces that end with the process that made them, however it ends.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

BURST = 32_768
# Bytes of the packets that travel as one through the kernel: fewer timers, less computing.
TRAIN = 16_384
RATES = {"100mbit": 100e6, "1gbit": 1e9}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(0)


def enter(script):
    """Runs a script again in namespaces of its own, which end with it."""
    if sys.platform != "linux":
        skip("network namespaces are Linux's")
    for tool, package in [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")]:
        if shutil.which(tool) is None:
            skip(f"there is no `{tool}` (package {package})")
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    # `ip netns` keeps names under /run.
    probe = ("mount -t tmpfs none /run && ip netns add probe && ip link add name probe type bridge && "
             "tc qdisc add dev probe root tbf rate 1mbit burst 32kb limit 64kb")
    done = subprocess.run([*unshare, "sh", "-c", probe], capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        skip(f"no right to make network namespaces and limit rates here ({said}); try as root")
    again = [sys.executable, str(Path(script).resolve()), "--inside", *sys.argv[1:]]
    os.execvp("unshare", [*unshare, "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh", *again])


class Network:
    """A bridge, and hosts on it, the last of them for a server; the bridge's own end is 10.7.0.254."""

    def __init__(self, hosts, rate):
        self.hosts, self.rate = hosts, rate

    def __enter__(self):
        sh("ip link add name bridge type bridge && ip link set bridge up && ip link set lo up"
           " && ip addr add 10.7.0.254/24 dev bridge")
        for host in range(self.hosts + 1):
            limit = f"root handle 1: tbf rate {self.rate} burst {BURST} limit 16mb"
            sh(f"ip netns add host{host}"
               f" && ip link add port{host} type veth peer name eth0 netns host{host}"
               f" && ip link set port{host} master bridge up"
               f" && ip -n host{host} addr add {address(host)}/24 dev eth0"
               f" && ip -n host{host} link set lo up && ip -n host{host} link set eth0 up"
               f" && ip -n host{host} link set eth0 gso_max_size {TRAIN}"
               f" && tc -n host{host} qdisc add dev eth0 {limit}"
               # Acknowledgements pass before bulk data: fair queueing is not in every kernel.
               f" && ip -n host{host} link set eth0 txqueuelen 10000"
               f" && tc -n host{host} qdisc add dev eth0 parent 1:1 handle 10: pfifo_fast"
               f" && tc qdisc add dev port{host} {limit}")
        return self

    def __exit__(self, *_):
        for host in range(self.hosts + 1):
            sh(f"ip link del port{host}; ip netns del host{host}")
        sh("ip link del bridge")


def address(host):
    return f"10.7.0.{host + 1}"


def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr.strip()}")
