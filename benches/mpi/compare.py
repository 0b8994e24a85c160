#!/usr/bin/env python3
"""Schemes over MPI on a real, slow network, against the model of it and against PyTorch DDP.

Builds hosts as network namespaces joined by links of the given rates (`benches/network/hosts.py`),
starts one gradwire worker in each by `mpirun`, whose `plm_rsh_agent` enters a namespace where it would
have used ssh, and does the same with PyTorch DDP over gloo: plain, with its fp16 hook and with
PowerSGD. Prints, for every scheme, seconds per step (medians; means where ranks exchange every H steps) beside what `gradwire network replay` says of the
same run on such a link, and the seconds after which the training loss, averaged over the last steps,
first fell to a given one.

    benches/mpi/compare.py --dir DATA                                    # ResNet-18 on CIFAR-10, 2 hosts
    benches/mpi/compare.py --dir DATA --hosts 4 --model resnet20 --rates 1gbit
    benches/mpi/compare.py --steps 3 --schemes dense,sidco               # made-up data, a quick look

Linux, with iproute2 and util-linux, as root; Open MPI. Says `skipped` and why where it lacks them.
Quiet the machine first: a worker wants a core of its own.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "network"))
from hosts import BURST, RATES, Network, address, enter, skip  # noqa: E402

# Ethernet 14, IP 20, TCP 20, timestamps 12.
HEADER = 66
ENV = ROOT / "target" / "pytorch"
# SparseLoCo's compression, here of the progress of rounds of H steps.
SPARSE = ["scheme={ kind = \"topk\", ratio = 0.01, chunk = 4096, values = \"2bit\" }",
          "policy.feedback={ decay = 0.95 }", "policy.momentum_correction=0"]
SCHEMES = {
    "dense": ["scheme=dense"],
    "f16": ["scheme=half"],
    "top-k 1 %": ["scheme=topk", "scheme.ratio=0.01"],
    "SIDCo 0.001": ["scheme=sidco", "scheme.ratio=0.001"],
    "OptQuant-3": ["scheme=optquant", "scheme.bits=3"],
    "DQ-SGD": ["scheme=dqsgd"],
    "CASQ-2": ["scheme=casq", "scheme.bits=2"],
    "dense H=4": ["local.steps=4"],
    "dense H=16": ["local.steps=16"],
    "top-k 1 % 2 bits H=4": ["local.steps=4", *SPARSE],
    "top-k 1 % 2 bits H=16": ["local.steps=16", *SPARSE],
}
HOOKS = {"DDP": "none", "DDP fp16": "fp16", "DDP PowerSGD": "powersgd"}
# Those of the Python package `gradwire`, which --python has to have.
PACKAGE = {
    "hook dense": "gradwire:dense",
    "hook top-k 1 %": "gradwire:topk",
    "hook SIDCo 0.001": "gradwire:sidco,ratio=0.001",
    "hook CASQ-2": "gradwire:casq,bits=2",
    "hook PowerSGD": "gradwire:powersgd,rank=2",
}
# Over how many steps the training loss is averaged.
WINDOW = 10


def main():
    a = parse()
    for tool in ["mpirun", "ip", "tc"]:
        if shutil.which(tool) is None:
            skip(f"there is no `{tool}`")
    if not a.inside:
        build(a)
        enter(__file__)
    python = a.python or ENV / "bin" / "python"
    for rate in a.rates:
        with Network(a.hosts, rate) as network:
            table(a, network, python)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: text.split(",")
    p.add_argument("--dir", type=Path, help="the folder of CIFAR-10; made-up images without it")
    p.add_argument("--model", default="resnet18", choices=["resnet18", "resnet20"])
    p.add_argument("--hosts", type=int, default=2, help="2 to 4, one worker in each")
    p.add_argument("--rates", type=words, default=list(RATES), help="100mbit,1gbit")
    p.add_argument("--schemes", type=words, default=list(SCHEMES), help=",".join(SCHEMES).replace("%", "%%") + ", or none")
    p.add_argument("--hooks", type=words, default=list(HOOKS),
                   help=",".join(HOOKS | PACKAGE).replace("%", "%%") + ", or none")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--loss", type=float, default=2.0, help="the training loss to tell the time to")
    p.add_argument("--latency", default="100us", help="of the link, for the model")
    p.add_argument("--binary", type=Path, help="gradwire with MPI, if it is built already")
    p.add_argument("--python", type=Path, help="a Python with torch and numpy, if there is one already")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.hooks = [hook for hook in a.hooks if hook != "none"]
    a.schemes = [scheme for scheme in a.schemes if scheme != "none"]
    for given, known, flag in [(a.rates, RATES, "rates"), (a.schemes, SCHEMES, "schemes"),
                               (a.hooks, HOOKS | PACKAGE, "hooks")]:
        unknown = [word for word in given if word not in known]
        if unknown:
            p.error(f"--{flag} {unknown[0]}: take from {', '.join(known)}")
    if not 2 <= a.hosts <= 4:
        p.error("--hosts: 2 to 4")
    return a


def build(a):
    """The program, and a virtual environment with PyTorch, where they are not given."""
    if a.binary is None:
        command = ["cargo", "build", "--release", "-q", "--features", "mpi"]
        subprocess.run(command, cwd=ROOT, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        sys.argv += ["--binary", str(target / "release" / "gradwire")]
    if a.hooks and a.python is None and not (ENV / "bin" / "python").exists():
        venv.create(ENV, with_pip=True)
        packages = ["torch", "numpy"]
        subprocess.run([ENV / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)


def table(a, network, python):
    print(f"\n{a.model}, {a.hosts} hosts, {network.rate}, batch {a.batch} per worker, {a.steps} steps, "
          f"{'CIFAR-10' if a.dir else 'made-up images'}\n")
    print(f"| scheme | s per step | modelled | off | s to loss {a.loss} | MB per step |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in a.schemes:
        steps, modelled = ours(a, network, SCHEMES[name])
        seconds = [step["seconds"] for step in steps]
        # Most steps of a round send nothing.
        middle = statistics.fmean if "H=" in name else statistics.median
        row(name, middle(seconds[1:]), modelled, reached(a, seconds, [step["loss"] for step in steps]),
            middle(step["wire_bytes"] for step in steps) / 1e6)
    for name in a.hooks:
        told = theirs(a, network, python, (HOOKS | PACKAGE)[name])
        row(name, told["step_ms"] / 1e3, None, reached(a, told["seconds"], told["losses"]), None)


def row(name, measured, modelled, to_loss, megabytes):
    or_none = lambda value, form: "–" if value is None else form.format(value)
    off = None if modelled is None else 100 * (measured / modelled - 1)
    print(f"| {name} | {measured:.3f} | {or_none(modelled, '{:.3f}')} | {or_none(off, '{:+.0f} %')} "
          f"| {or_none(to_loss, '{:.1f}')} | {or_none(megabytes, '{:.2f}')} |", flush=True)


def reached(a, seconds, losses):
    """Seconds of training until the mean loss of the last steps is low enough; None if it never is."""
    passed = 0
    for step, second in enumerate(seconds):
        passed += second
        last = losses[max(0, step + 1 - WINDOW):step + 1]
        if len(last) == WINDOW and sum(last) / WINDOW <= a.loss:
            return passed
    return None


def ours(a, network, scheme):
    """The steps of a run over MPI, and what the model says that a step takes: the median, of rounds the mean."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = [f"train.batch={a.batch}", f"train.max_steps={a.steps}", "record.every=1",
                    "record.histograms_every=0", f"optimizer.learning_rate={a.lr}", "threads=1",
                    "schedule=constant", "checkpoint.keep_last=0", f"record.out={scratch}/runs",
                    "exchange.timeout=600", "exchange.compare_replicas_every=0",
                    # Every step is recorded; measuring what compression misses is no part of it.
                    "policy.measure_every=0", *scheme]
        recipe = ["train", "cifar10-dense", "--quiet", "--workers", a.hosts, "--model", a.model]
        recipe += ["--dir", a.dir] if a.dir else ["--dataset", "synthetic-cifar10"]
        hosts = ",".join(f"{address(host)}:1" for host in range(a.hosts))
        mpirun = ["mpirun", "--allow-run-as-root", "--host", hosts, "-n", a.hosts,
                  "--map-by", "node", "--bind-to", "none",
                  "--mca", "plm_rsh_agent", HERE / "agent.sh", "--mca", "plm_rsh_no_tree_spawn", 1,
                  "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                  "--mca", "btl_tcp_if_include", "10.7.0.0/24",
                  "--mca", "oob_tcp_if_include", "10.7.0.0/24"]
        sets = [word for setting in settings for word in ("--set", setting)]
        # What the launcher says goes to the person.
        run([*mpirun, a.binary, *recipe, *sets], scratch)
        folder = next(Path(scratch, "runs").glob("*/*/metrics.jsonl")).parent
        events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        steps = [event for event in events if event["event"] == "step"]
        link = f"{network.rate},latency={a.latency},header={HEADER},burst={BURST}"
        told = run([a.binary, "network", "replay", folder, "--links", link, "--json"], scratch)
        return steps, json.loads(told.splitlines()[0])["step_seconds"]


def theirs(a, network, python, hook):
    """What rank 0 of PyTorch DDP tells."""
    script = HERE.parent / "pytorch" / "torch_ddp.py"
    hook, _, scheme = hook.partition(":")
    options = ["--model", a.model, "--batch", a.batch, "--world", a.hosts, "--steps", a.steps,
               "--warm", 1, "--master", address(0), "--hook", hook, "--channels-last", "--lr", a.lr]
    options += ["--data", a.dir] if a.dir else []
    options += ["--scheme", scheme] if scheme else []
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = []
    for host in range(a.hosts):
        command = ["ip", "netns", "exec", f"host{host}", python, script, *options, "--rank", host]
        ranks.append(subprocess.Popen(list(map(str, command)), env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    told = [rank.communicate(timeout=7200) for rank in ranks]
    for rank, (_, err) in zip(ranks, told):
        if rank.returncode != 0:
            sys.exit(f"PyTorch: {err.strip()[-2000:]}")
    lines = [line for line in told[0][0].splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def run(command, folder):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
