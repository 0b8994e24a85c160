#!/usr/bin/env python3
"""What the verdicts of the stored experiments hang on, beside what their intervals say (docs/reproduce.md).

usage: python3 docs/results/sensitivity.py [PROGRAM]     (PROGRAM is target/release/gradwire if absent; a clone with its history)

It prints: runs whose build nobody can make again, and the rows with a verdict that have one; rows that 100 Mbit/s alone, and
all links without infinite bandwidth, would decide; rows of one look that the first of three would leave open; and rows on steps and times to a loss that another smoothing
of the curves would answer otherwise, or answer at all. The last it computes anew, by code of its own, from results.json, but for the best of
several tasks. An answer is a verdict, or that the verdict depends on the link.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/gradwire"
NAMES = ["dqsgd", "casq", "optquant", "aggregation", "sidco", "grace", "local"]
RESULTS = {name: json.loads((ROOT / f"docs/results/{name}-standard/results.json").read_text()) for name in NAMES}
CLAIMS = {name: tomllib.loads((ROOT / f"runs/reproduce/{name}.toml").read_text())["claims"] for name in NAMES}
LINK, INFINITE = "100mbit", "infinite bandwidth"
DECIDED = ("**reproduced**", "contradicted")
ANSWERED = (*DECIDED, "dependent")
# Points on either side over which curves are smoothed; three is what verdicts use.
WIDTHS = [1, 2, 3, 5, 8]
# Seeds at a look, and the share of errors on each side: three looks, and one.
LOOKS = {3: [(3, 0.0208), (6, 0.0146), (10, 0.0146)], 1: [(math.inf, 0.05)]}


def rows(folders):
    """Of each claim: its experiment, its text, the measured column and the verdict."""
    said = subprocess.run([PROGRAM, "report", "--claims", *folders], capture_output=True, text=True, check=True).stdout
    cells = (line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| "))
    return [(c[0], c[1], c[3], c[4]) for c in cells if len(c) == 5 and c[0] in NAMES]


def claim_of(name, text):
    (claim,) = [c for c in CLAIMS[name] if c["claim"].replace("|", "\\|") == text]
    return claim


def tell(title, found):
    print(f"\n{title}: {len(found)}")
    for line in found:
        print(f"  {line}")


def builds(told):
    """Runs by a build with changes that no commit holds, or of a commit that is not in the history."""
    known = {}

    def is_known(commit):
        if commit not in known:
            asked = ["git", "-C", ROOT, "merge-base", "--is-ancestor", commit, "HEAD"]
            known[commit] = subprocess.run(asked, capture_output=True).returncode == 0
        return known[commit]

    all_runs, dirty, lost, gone = 0, Counter(), Counter(), set()
    for name, results in RESULTS.items():
        for run in results["runs"] if name != "local" else []:
            commit = run["measured"]["provenance"]["commit"]
            all_runs += 1
            for kind, applies in ((dirty, "dirty" in commit), (lost, "dirty" not in commit and not is_known(commit))):
                if applies:
                    kind[f"{name}, {run['task']}"] += 1
                    gone.add((name, run["task"], run["arm"], run["seed"]))
    print(f"of {all_runs} runs (local's apart, all of clean builds): changes without a commit {sum(dirty.values())} {dict(dirty)}, "
          f"a commit that is not in the history {sum(lost.values())} {dict(lost)}")
    found = []
    for name, text, measured, verdict in told:
        if verdict.startswith(DECIDED):
            claim, seeds = claim_of(name, text), max(map(int, re.findall(r"(\d+) seeds", measured)), default=10)
            tasks = [claim["task"]] if "task" in claim else claim["best_of"]
            arms = [claim["arm"], claim.get("against")]
            if any((name, t, a, s) in gone for t in tasks for a in arms for s in range(1, seeds + 1)):
                found.append(f"{name}: {text}")
    decided = sum(verdict.startswith(DECIDED) for *_, verdict in told)
    tell(f"of {decided} rows that are reproduced or contradicted, with at least one of these runs", found)


def links(told):
    alone, without = [], []
    for name, text, _, verdict in told:
        parts = re.split(r", (?=it holds|the opposite|undecided at)", verdict.split(": ", 1)[-1])
        said = [part.split(" at ", 1) for part in parts if " at " in part]
        said = [(word, where) for word, where in said if word in ("it holds", "the opposite", "undecided")]
        decided = [(word, where) for word, where in said if word != "undecided"]
        alone += [f"{word}: {name}: {text}" for word, where in decided if LINK in where]
        others = [word for word, where in said if where != INFINITE]
        if len(said) > 1 and len(others) == 1 and others[0] != "undecided":
            without.append(f"{others[0]}: {name}: {text}")
    tell(f"rows that are not the same on all links and that {LINK} alone would decide", sorted(alone))
    tell("those that all links but infinite bandwidth would decide", sorted(without))


def one_look(told):
    with tempfile.TemporaryDirectory() as folder:
        once = [name for name in NAMES if (RESULTS[name].get("looks") or 1) == 1]
        for name in once:
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "results.json").write_text(json.dumps({**RESULTS[name], "looks": 3}))
        three = {(name, text): verdict for name, text, _, verdict in rows([Path(folder) / name for name in once])}
    found = [f"{name}: {text}" for name, text, _, verdict in told
             if name in once and verdict.startswith(ANSWERED) and not three[name, text].startswith(ANSWERED)]
    tell("rows of one look with an answer that the first of three would leave open", found)


def quantile(side, freedom):
    """Student's t that `side` of all lie above, by bisection over Simpson's rule."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = lambda x: scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    def below(x, pieces=4000):
        width = x / pieces
        inner = sum((4 if i % 2 else 2) * density(i * width) for i in range(1, pieces))
        return 0.5 + width / 3 * (density(0) + inner + density(x))

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 1 - side else (low, middle)
    return low


QUANTILES = {}


def decide(logarithms, looks):
    """Whether a ratio is at most 1, from its logarithms in the order of seeds."""
    said = "too few"
    for seeds, side in LOOKS[looks]:
        if math.isfinite(seeds) and len(logarithms) < seeds:
            break
        values = logarithms[: seeds if math.isfinite(seeds) else None]
        if len(values) < 2:
            break
        key = side, len(values) - 1
        if key not in QUANTILES:
            QUANTILES[key] = quantile(*key)
        mean = sum(values) / len(values)
        half = QUANTILES[key] * math.sqrt(sum((v - mean) ** 2 for v in values) / key[1] / len(values))
        said = "holds" if mean + half <= 0 else "fails" if mean - half > 0 else "open"
        if said != "open":
            break
    return said


def smooth(losses, most):
    """Means over at most so many points on either side, each weighted by its steps; at the beginning as many after as before."""
    weights = [point["step"] - before for point, before in zip(losses, [0, *(p["step"] for p in losses)])]
    found = []
    for i in range(len(losses)):
        near = range(max(i - most, 0), min(i + min(most, i), len(losses) - 1) + 1)
        found.append(sum(weights[k] * losses[k]["loss"] for k in near) / sum(weights[k] for k in near))
    return found


def reached(measured, link, point, replayed):
    """Steps, or seconds on a link, up to a point of the curve; at infinite bandwidth as it was replayed there, if both were."""
    step = measured["losses"][point]["step"]
    if link is None:
        return step
    if link == INFINITE and replayed:
        return measured["free"]["at_losses"][point]
    if link == INFINITE:
        fastest = max(measured["links"], key=lambda one: one["bandwidth"])
        return step * (fastest["step_seconds"] - fastest["exposed_seconds"])
    return next(one for one in measured["links"] if one["link"] == link)["at_losses"][point]


def smoothed(name, claim, most):
    """The answer on all links together."""
    results, said = RESULTS[name], set()
    of = lambda arm: {run["seed"]: run["measured"] for run in results["runs"] if run["outcome"]["state"] == "finished"
                      and (run["task"], run["arm"]) == (claim["task"], arm)}
    own, other = of(claim["arm"]), of(claim["against"])
    for link in [None] if claim["measure"] == "steps-to-loss" else [*results["links"], INFINITE]:
        logarithms = []
        for seed in sorted(own.keys() & other.keys()):
            both = own[seed], other[seed]
            curves = [smooth(one["losses"], most) for one in both]
            goal = max(curve[-1] for curve in curves)
            points = [next(i for i, loss in enumerate(curve) if loss <= goal) for curve in curves]
            if 0 in points:
                return "not testable"
            replayed = all("free" in one for one in both)
            ours, theirs = (reached(one, link, point, replayed) for one, point in zip(both, points))
            logarithms.append(math.log(ours / theirs))
        said.add(decide(logarithms, results.get("looks") or 1))
    return said.pop() if len(said) == 1 else "depends" if said >= {"holds", "fails"} else "open"


def smoothing():
    kept, changed, opened = [], [], []
    for name in NAMES:
        for claim in CLAIMS[name]:
            asked = claim["measure"] in ("seconds-to-loss", "steps-to-loss") and "best_of" not in claim
            if not asked or "standard" not in claim.get("scales", ["standard"]):
                continue
            # A factor is asked to be at least or at most 1, a saving at least 0: own time at most the other's.
            bound = claim.get("at_most", claim.get("at_least"))
            assert bound == (0 if claim["compare"] == "saving" else 1), claim
            said = [smoothed(name, claim, most) for most in WIDTHS]
            answers = [one in ("holds", "fails", "depends") for one in said]
            if any(answers):
                words = " ".join(f"{most}:{one}" for most, one in zip(WIDTHS, said))
                place = changed if answers[WIDTHS.index(3)] else opened
                (kept if len(set(said)) == 1 else place).append(f"{words}: {name}: {claim['claim']}")
    tell(f"rows on steps or times to a loss with an answer, which is the same with {WIDTHS} points on either side", kept)
    tell("and those where it is not", changed)
    tell("rows without an answer that have one with another number of points", opened)


told = rows([ROOT / f"docs/results/{name}-standard" for name in NAMES])
builds(told)
links(told)
one_look(told)
smoothing()
