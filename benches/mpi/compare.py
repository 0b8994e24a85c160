#!/usr/bin/env python3
"""Schemes over MPI on a real, slow network, against the model of it and against PyTorch DDP.

Builds hosts as network namespaces joined by links of the given rates (`benches/network/hosts.py`),
starts one gradwire worker in each by `mpirun`, whose `plm_rsh_agent` enters a namespace where it would
have used ssh, and does the same with PyTorch DDP over gloo: plain, with its fp16 hook and with
PowerSGD. Prints, for every scheme, seconds per step (medians; means where ranks exchange every H steps), the
seconds after which the training loss, averaged over the last steps, first fell to a given one, and beside both what
`gradwire network replay` says of the same run on such a link. The first step, in which ranks connect and PyTorch
compiles, is left out. Of several seeds, the median and the range.

    benches/mpi/compare.py --dir DATA                                    # ResNet-18 on CIFAR-10, 2 hosts
    benches/mpi/compare.py --dir DATA --schemes "dense,OptQuant-3 H=16 bf16" --hooks "DDP,DDP PowerSGD bf16" \
        --seeds 1,2,3 --out runs.jsonl                                   # keeps every step of every run
    benches/mpi/compare.py --read runs.jsonl --loss 1.9                  # the tables of runs that were kept
    benches/mpi/compare.py --dir DATA --hosts 4 --model resnet20 --rates 1gbit
    benches/mpi/compare.py --steps 3 --schemes "dense,SIDCo 0.001"      # made-up data, a quick look

Linux, with iproute2 and util-linux, as root; Open MPI. Says `skipped` and why where it lacks them.
Quiet the machine first: a worker wants a core of its own.
"""

import argparse
import json
import os
import re
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
# Behind any of these names: H=16, which exchanges every 16th step, and bf16.
SCHEMES = {
    "dense": ["scheme=dense"],
    "f16": ["scheme=half"],
    "top-k 1 %": ["scheme=topk", "scheme.ratio=0.01"],
    # SparseLoCo's compression.
    "top-k 1 % 2 bits": ["scheme={ kind = \"topk\", ratio = 0.01, chunk = 4096, values = \"2bit\" }",
                         "policy.feedback={ decay = 0.95 }", "policy.momentum_correction=0"],
    "PowerSGD": ["scheme=powersgd", "scheme.rank=2"],
    "SIDCo 0.001": ["scheme=sidco", "scheme.ratio=0.001"],
    "OptQuant-3": ["scheme=optquant", "scheme.bits=3"],
    "DQ-SGD": ["scheme=dqsgd"],
    "CASQ-2": ["scheme=casq", "scheme.bits=2"],
}
# Behind any of these names: bf16, and compile.
HOOKS = {
    "DDP": "none",
    "DDP fp16": "fp16",
    "DDP PowerSGD": "powersgd",
    # Of the Python package `gradwire`, which --python has to have.
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
    if a.read:
        return tables(a, stored(a.read))
    for tool in ["mpirun", "ip", "tc"]:
        if shutil.which(tool) is None:
            skip(f"there is no `{tool}`")
    if not a.inside:
        build(a)
        enter(__file__)
    runs = []
    for rate in a.rates:
        with Network(a.hosts, rate) as network:
            for seed in a.seeds:
                for name in a.schemes + a.hooks:
                    told = (ours if name in a.schemes else theirs)(a, network, name, seed)
                    runs.append({"name": name, "rate": rate, "seed": seed, "hosts": a.hosts, "model": a.model, "batch": a.batch,
                                 "learning_rate": a.lr, "data": "CIFAR-10" if a.dir else "made-up images", **told})
                    print(f"{rate}, {name}, seed {seed}: {middle(runs[-1], 'seconds', 1):.3f} s per step",
                          file=sys.stderr, flush=True)
                    if a.out:
                        with a.out.open("a") as out:
                            print(json.dumps(runs[-1]), file=out)
    tables(a, runs)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: text.split(",")
    p.add_argument("--dir", type=Path, help="the folder of CIFAR-10; made-up images without it")
    p.add_argument("--model", default="resnet18", choices=["resnet18", "resnet20"])
    p.add_argument("--hosts", type=int, default=2, help="2 to 4, one worker in each")
    p.add_argument("--rates", type=words, default=list(RATES), help="100mbit,1gbit")
    p.add_argument("--schemes", type=words, default=[*SCHEMES, "dense H=16"],
                   help=",".join(SCHEMES).replace("%", "%%") + ", each also with H=16 and the like, and bf16; or none")
    p.add_argument("--hooks", type=words, default=[name for name in HOOKS if name.startswith("DDP")],
                   help=",".join(HOOKS).replace("%", "%%") + ", each also with bf16 and with compile; or none")
    p.add_argument("--seeds", type=lambda text: list(map(int, text.split(","))), default=[1], help="1,2,3")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--loss", type=float, default=2.0, help="the training loss to tell the time to")
    p.add_argument("--latency", default="100us", help="of the link, for the model")
    p.add_argument("--binary", type=Path, help="gradwire with MPI, if it is built already")
    p.add_argument("--python", type=Path, help="a Python with torch and numpy, if there is one already")
    p.add_argument("--out", type=Path, help="a file that every run is appended to, a line of JSON each")
    p.add_argument("--read", type=Path, help="such a file, to print its tables and run nothing")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.hooks = [hook for hook in a.hooks if hook != "none"]
    a.schemes = [scheme for scheme in a.schemes if scheme != "none"]
    for given, known, flag in [(a.rates, RATES, "rates"), (a.schemes, SCHEMES, "schemes"), (a.hooks, HOOKS, "hooks")]:
        unknown = [word for word in given if parts(word, known)[0] not in known]
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


def stored(path):
    """The runs in such a file."""
    try:
        runs = [json.loads(line) for line in path.read_text().splitlines()]
        made = [(run["rate"], run["hosts"], run["model"], run["batch"], run["name"], run["seed"]) for run in runs]
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"{path}: {error!r}; give a file that --out wrote")
    twice = [run for number, run in enumerate(made) if run in made[:number]]
    if twice:
        sys.exit(f"{path}: {twice[0]} is there twice; leave out one of the two lines")
    return runs


def tables(a, runs):
    """Markdown, a table for each setting of the runs."""
    setting = lambda run: (f"{run['model']}, {run['hosts']} hosts, {run['rate']}, batch {run['batch']} per worker, "
                           f"a rate of {run['learning_rate']}, {run['data']}")
    for one in dict.fromkeys(map(setting, runs)):
        print(f"\n{one}\n")
        print(f"| | seeds | steps | s per step | modelled | s to loss {a.loss} | modelled | MB per step |")
        print("|---|---|---|---|---|---|---|---|")
        here = [run for run in runs if setting(run) == one]
        for name in dict.fromkeys(run["name"] for run in here):
            row(a, name, [run for run in here if run["name"] == name])


def row(a, name, runs):
    steps = [reached(a, run) for run in runs]
    cells = [
        spread([middle(run, "seconds", 1) for run in runs], 3),
        spread([run["modelled"] for run in runs], 3),
        spread([sum(run["seconds"][1:n]) if n else None for run, n in zip(runs, steps)], 1),
        spread([run["modelled_ends"][n - 1] - run["modelled_ends"][0] if n and run["modelled"] else None
                for run, n in zip(runs, steps)], 1),
        spread([middle(run, "wire_bytes", 0) / 1e6 if run["wire_bytes"] else None for run in runs], 2),
    ]
    print(f"| {name} | {len(runs)} | {min(len(run['seconds']) for run in runs)} | {' | '.join(cells)} |", flush=True)


def middle(run, what, first):
    """Of the run's steps, from that one on."""
    # Most steps of a round send nothing.
    return (statistics.fmean if "H=" in run["name"] else statistics.median)(run[what][first:])


def spread(values, digits):
    """The median and, of several values, the range; where one is absent, how many there are."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return f"{len(there)} of {len(values)}" if there else "–"
    text = f"{statistics.median(there):.{digits}f}"
    return text if len(there) == 1 else f"{text} ({min(there):.{digits}f} to {max(there):.{digits}f})"


def reached(a, run):
    """The steps until the mean loss of the last ones is low enough; None if it never is."""
    losses = run["losses"]
    return next((n for n in range(WINDOW, len(losses) + 1) if sum(losses[n - WINDOW:n]) / WINDOW <= a.loss), None)


def parts(name, known):
    """The name without its options, and they."""
    option = re.compile(r"bf16|compile" if known is HOOKS else r"bf16|H=[1-9]\d*")
    options = [word for word in name.split() if option.fullmatch(word)]
    return " ".join(word for word in name.split() if word not in options), options


def ours(a, network, name, seed):
    """The steps of a run over MPI, and what the model says that a step takes: the median, of rounds the mean."""
    base, options = parts(name, SCHEMES)
    scheme = SCHEMES[base] + [f"local.steps={word[2:]}" if "H=" in word else "precision=bf16" for word in options]
    with tempfile.TemporaryDirectory() as scratch:
        settings = [f"train.batch={a.batch}", f"train.max_steps={a.steps}", "record.every=1",
                    "record.histograms_every=0", f"optimizer.learning_rate={a.lr}", "threads=1",
                    "schedule=constant", "checkpoint.keep_last=0", f"record.out={scratch}/runs",
                    "exchange.timeout=600", "exchange.compare_replicas_every=0",
                    # As in torch_ddp.py.
                    "optimizer.nesterov=false", "optimizer.weight_decay=0",
                    # Every step is recorded; measuring what compression misses is no part of it.
                    "policy.measure_every=0", f"seed={seed}", *scheme]
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
        replayed = run([a.binary, "network", "replay", folder, "--links", link, "--json"], scratch)
        told = json.loads((folder / "provenance.json").read_text())
        replayed = json.loads(replayed.splitlines()[0])
        return {"seconds": [round(step["seconds"], 4) for step in steps], "losses": [round(step["loss"], 4) for step in steps],
                "wire_bytes": [step["wire_bytes"] for step in steps], "modelled": replayed["step_seconds"],
                "modelled_ends": [round(end, 4) for end, _, _ in replayed["losses"]],
                "by": {key: told[key] for key in ["version", "commit", "cpu", "cores", "kernels"]}}


def theirs(a, network, name, seed):
    """What rank 0 of PyTorch DDP tells."""
    base, options = parts(name, HOOKS)
    script = HERE.parent / "pytorch" / "torch_ddp.py"
    hook, _, scheme = HOOKS[base].partition(":")
    words = ["--model", a.model, "--batch", a.batch, "--world", a.hosts, "--steps", a.steps,
               "--warm", 1, "--master", address(0), "--hook", hook, "--channels-last", "--lr", a.lr,
               "--seed", seed, *(f"--{word}" for word in options)]
    words += ["--data", a.dir] if a.dir else []
    words += ["--scheme", scheme] if scheme else []
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = []
    for host in range(a.hosts):
        command = ["ip", "netns", "exec", f"host{host}", a.python or ENV / "bin" / "python", script, *words, "--rank", host]
        ranks.append(subprocess.Popen(list(map(str, command)), env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    told = [rank.communicate(timeout=7200) for rank in ranks]
    for rank, (_, err) in zip(ranks, told):
        if rank.returncode != 0:
            sys.exit(f"PyTorch: {err.strip()[-2000:]}")
    lines = [line for line in told[0][0].splitlines() if line.startswith("{")]
    told = json.loads(lines[-1])
    return {"seconds": told["seconds"], "losses": told["losses"], "wire_bytes": None, "modelled": None,
            "by": {"version": told["framework"]}}


def run(command, folder):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
