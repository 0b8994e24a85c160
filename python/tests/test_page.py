"""The programs of docs/pytorch.md run as they stand on the page."""

import ast
import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "pytorch.md"
EXAMPLES = Path(__file__).parent.parent / "examples"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def block(words):
    found = [one for one in BLOCKS if words in one]
    assert len(found) == 1, words
    return found[0]


def torchrun(program, folder=None):
    """What two processes print that run a program."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")
    if int(torch.__version__.split(".")[0]) < 2:
        pytest.skip("the launcher of Debian's PyTorch 1.13 fails with Python 3.11")
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    start += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*start, program], capture_output=True, text=True, timeout=300, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_train_with_the_program_of_the_page(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(block("init_process_group"))
    said = torchrun(program)
    said = re.findall(r"step (\d+): loss ([\d.]+), (\d+) bytes sent, (\d+) unc", said)
    assert [int(step) for step, *_ in said] == [50, 100, 150, 200], said
    assert float(said[-1][1]) < 0.8 * float(said[0][1])
    assert all(int(sent) < 0.1 * int(dense) for _, _, sent, dense in said)


def test_the_example_of_an_own_scheme_trains_like_the_native_one():
    said = torchrun(EXAMPLES / "own_scheme.py")
    assert "28 of them a checksum" in said, said


@pytest.mark.parametrize("package, steps", [("accelerate", 50), ("lightning", 100)])
def test_the_examples_of_other_trainers_train_compressed(package, steps, tmp_path):
    pytest.importorskip(package, reason=f"{package} is not installed")
    said = torchrun(EXAMPLES / f"with_{package}.py", tmp_path)
    words = r"loss ([\d.]+) to ([\d.]+) in (\d+) steps, (\d+) bytes a step, (\d+) uncompressed"
    first, last, made, sent, dense = (float(one) for one in re.search(words, said).groups())
    assert made == steps and last < 0.8 * first and sent < 0.1 * dense, said
    if package == "lightning":
        import torch

        saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["gradwire"]
        assert len(saved["ranks"]) == 2 and saved["ranks"][1]["step"] == steps


@pytest.mark.parametrize("tiny", [False, True])
def test_ef21_of_the_page_is_short_and_is_ef21(tiny):
    import numpy
    from test_exchange import SHAPES, gradient, ranks

    import gradwire

    program = block("class EF21")
    assert len(re.search(r"class EF21.*?(?=\n\n)", program, re.S).group().splitlines()) <= 15
    names = {}
    exec(compile(program, "page", "exec"), names)

    # A message for seven elements is longer than they are.
    shapes = {"bias": (7,)} if tiny else SHAPES
    length = 7 if tiny else None

    def run(end):
        exchange, found = gradwire.Exchange(shapes, names["EF21"](0.05), end), []
        for step in range(1, 5):
            values = gradient(end.rank, step)[:length].copy()
            exchange.allreduce(step, values)
            found.append(values)
        return found

    found = ranks(2, run)
    known = numpy.zeros((2, len(found[0][0])))
    for step in range(4):
        for rank in range(2):
            change = gradient(rank, step + 1)[:length] - known[rank]
            largest = numpy.argsort(abs(change))[-max(1, round(0.05 * change.size)) :]
            known[rank][largest] += change[largest]
        assert numpy.allclose(found[0][step], known.mean(axis=0), atol=1e-5)
        assert numpy.array_equal(found[0][step], found[1][step])


def test_the_table_of_features_names_tests_that_there_are():
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    named = re.findall(r"`(test_\w+)(?:\[([^\]]+)\])?`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    for test, case in named:
        assert f"def {test}(" in tests, test
        assert f'"{case}"' in tests or not case, case


def test_ranks_skip_together_with_the_scaler_of_the_page():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("needs a GradScaler for the processor: PyTorch 2.3 or newer")
    import jobs
    import numpy
    from ranks import run

    ranks = run(jobs.scaled, 2, block("scaler.scale("))
    for found, weights, residual in ranks:
        assert found == [(1024.0, True), (512.0, False), (512.0, True)]
        assert numpy.array_equal(weights, ranks[0][1])
        assert residual < 1


@pytest.mark.parametrize("words, made", [("steps=16,", 2), ("after=10,", 3)])
def test_local_steps_of_the_page(words, made):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if int(torch.__version__.split(".")[0]) < 2:
        pytest.skip("needs PyTorch 2.1 or newer")
    import local
    import numpy
    from ranks import run

    ranks = run(local.program, 2, block(words))
    for rounds, bits, weights in ranks:
        assert rounds == made and bits < 1
        assert numpy.array_equal(weights, ranks[0][2])


def test_the_programs_for_arrays_and_for_runs(tmp_path, capsys, monkeypatch):
    exec(compile(block("compressor = gradwire.Compressor("), "page", "exec"), {})
    length, gauges = capsys.readouterr().out.split(" ", 1)
    assert 10_000 < int(length) < 100_000 and "kept" in gauges
    pytest.importorskip("pandas", reason="pandas is not installed")
    program = block("read_run(")
    folder = re.search(r'read_run\("(.*?)"\)', program).group(1)
    shutil.copytree(Path(__file__).parent / "run", tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    try:
        import matplotlib

        matplotlib.use("svg")
    except ImportError:
        program = re.sub(r"^axes.*\n", "", program, flags=re.M)
    exec(compile(program, "page", "exec"), {})


def test_the_reference_is_what_the_stubs_say():
    assert reference.page() == PAGE.read_text(encoding="utf-8"), "run python python/tests/reference.py"


@pytest.mark.parametrize(
    "name, text",
    [
        (f"{module}.{node.name}.{inner.name}", ast.get_docstring(inner))
        for module, nodes in reference.definitions()
        for node in nodes
        for inner in reference.documented(node)
        if ">>>" in (ast.get_docstring(inner) or "")
    ],
)
def test_the_examples_of_doc_strings_are_right(name, text):
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    said = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert test.examples and not said, "".join(said)
