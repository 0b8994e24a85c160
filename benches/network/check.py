#!/usr/bin/env python3
"""The network model against reality: messages over TCP between network namespaces.

Builds hosts as network namespaces joined by veth pairs and a bridge, limits every host's sending
and receiving with `tc … tbf`, sends messages of recorded sizes between real processes in the
pattern of each topology (`exchange/examples/wire.rs`), and prints what it took beside what
`gradwire_exchange::network` says.

    benches/network/check.py                                  # messages of 64 KiB and 1 MiB
    benches/network/check.py runs/out/cifar10-sidco/…         # the sizes that a run recorded
    benches/network/check.py --rates 1gbit --hosts 4 --patterns server

Linux, with iproute2 and util-linux, as root or where users may make namespaces; says `skipped` and
why where it lacks them. Everything lives in namespaces that end with this process, however it ends.
Exit code 1 when a median over the rounds of messages of 64 KiB and more is off by more than 10 %.
"""

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hosts import BURST, RATES, Network, address, enter

ROOT = Path(__file__).resolve().parents[2]
# Ethernet 14 (tbf counts no preamble, checksum or gap), IP 20, TCP 20, timestamps 12.
HEADER = 66
PATTERNS = ["allgather", "allreduce", "server", "sharded"]
LARGE = 64 * 1024
LIMIT = 10.0


def main():
    arguments = parse()
    if not arguments.inside:
        enter(__file__)
    binary = arguments.binary or build()
    cases = recorded(arguments.runs) if arguments.runs else made_up()
    print(f"{'messages':<26} {'pattern':<10} {'hosts':>5} {'link':>8} {'bytes':>9} "
          f"{'measured':>10} {'modelled':>10} {'off':>7} {'first':>7}")
    worst = 0.0
    for rate in arguments.rates:
        for hosts in arguments.hosts:
            with Network(hosts, rate) as network:
                network.latency = latency(binary, network)
                for name, steps in cases:
                    for pattern in arguments.patterns:
                        row = case(binary, network, name, steps, pattern, arguments.rounds)
                        if row is not None:
                            worst = max(worst, row)
    print(f"worst median for messages of 64 KiB and more: {worst:.1f} %")
    return 1 if worst > LIMIT else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: text.split(",")
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs whose sizes to send")
    parser.add_argument("--rates", type=words, default=list(RATES), help="100mbit,1gbit")
    parser.add_argument("--hosts", type=lambda text: [int(n) for n in words(text)], default=[2, 4])
    parser.add_argument("--patterns", type=words, default=PATTERNS, help=",".join(PATTERNS))
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each case")
    parser.add_argument("--binary", type=Path, help="the example `wire`, if it is built already")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for rate in arguments.rates:
        if rate not in RATES:
            parser.error(f"--rates {rate}: take from {', '.join(RATES)}")
    for pattern in arguments.patterns:
        if pattern not in PATTERNS:
            parser.error(f"--patterns {pattern}: take from {', '.join(PATTERNS)}")
    if any(not 2 <= hosts <= 8 for hosts in arguments.hosts):
        parser.error("--hosts: 2 to 8")
    if arguments.rounds < 3:
        parser.error("--rounds: at least 3")
    return arguments


def build():
    command = ["cargo", "build", "--release", "-q", "-p", "gradwire-exchange", "--example", "wire"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "examples" / "wire"


def made_up():
    return [(f"{size >> 10} KiB", [[[size, size]]]) for size in (LARGE, 1 << 20)]


def recorded(runs):
    """Of each run: its name and, of some steps, bytes up and down of each rank."""
    cases = []
    for run in runs:
        try:
            lines = (run / "network.jsonl").read_text().splitlines()
        except OSError as error:
            sys.exit(f"{run}: {error.strerror}: is it the folder of a run?")
        steps = [json.loads(line) for line in lines[1:]]
        sizes = [[[sum(up), sum(down) or sum(up)] for up, down in zip(
            step["up"], step.get("down", [[0]] * len(step["up"])))] for step in steps]
        if not sizes:
            sys.exit(f"{run}: no step is recorded")
        cases.append((run.resolve().parent.name, sizes))
    return cases


def latency(binary, network):
    """Microseconds that a message of a few bytes takes: the model's one measured quantity."""
    network.latency = 0
    pairs = send(binary, network, [[[64, 64]] * network.hosts] * 21, "allgather")
    return round(1e6 * statistics.median(pair[0] for pair in pairs) / (network.hosts - 1), 1)


def case(binary, network, name, steps, pattern, rounds):
    """Sends, prints a row; how far the median is off, if the messages are large enough."""
    ranks = network.hosts
    chosen = [steps[i * len(steps) // (rounds + 1)] for i in range(rounds + 1)]
    sizes = [[step[rank % len(step)] for rank in range(ranks)] for step in chosen]
    pairs = send(binary, network, sizes, pattern)
    # The first round opens the congestion windows: shown apart.
    off = lambda pair: 100 * (pair[0] / pair[1] - 1)
    measured = statistics.median(pair[0] for pair in pairs[1:])
    modelled = statistics.median(pair[1] for pair in pairs[1:])
    difference = statistics.median(off(pair) for pair in pairs[1:])
    size = statistics.median(up for step in sizes for up, _ in step)
    print(f"{name:<26} {pattern:<10} {ranks:>5} {network.rate:>8} {size:>9.0f} "
          f"{measured * 1e3:>7.2f} ms {modelled * 1e3:>7.2f} ms {difference:>+6.1f}% "
          f"{off(pairs[0]):>+6.1f}%", flush=True)
    return abs(difference) if size >= LARGE else None


def send(binary, network, sizes, pattern):
    """Measured and modelled seconds of each round."""
    ranks = network.hosts
    plan = {
        "pattern": pattern,
        "link": f"{network.rate},latency={network.latency}us,header={HEADER},burst={BURST}",
        "addresses": [f"{address(h)}:7000" for h in range(ranks + (pattern == "server"))],
        "rounds": sizes,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        told = run_hosts(binary, file.name, len(plan["addresses"]))
        times = "\n".join(" ".join(row) for row in zip(*told[:ranks]))
        model = subprocess.run([binary, "model", file.name], input=times, text=True,
                               capture_output=True, check=True)
    return [[float(word) for word in line.split()] for line in model.stdout.splitlines()]


@functools.cache
def urgent():
    """How to run something before what else the machine does, where that is allowed."""
    fifo = ["chrt", "--fifo", "1"]
    allowed = shutil.which("chrt") and subprocess.run([*fifo, "true"], capture_output=True)
    return fifo if allowed and allowed.returncode == 0 else []


def run_hosts(binary, plan, hosts):
    """The lines that each host's process prints."""
    command = lambda host: ["ip", "netns", "exec", f"host{host}", *urgent(), str(binary), "host",
                            plan, str(host)]
    processes = [subprocess.Popen(command(host), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) for host in range(hosts)]
    told = []
    for host, process in enumerate(processes):
        out, err = process.communicate(timeout=300)
        if process.returncode != 0:
            for other in processes:
                other.kill()
            sys.exit(f"host {host}: {err.strip()}")
        told.append(out.split())
    return told


if __name__ == "__main__":
    sys.exit(main())
