"""Runs functions in several processes that are joined by gloo, with a limit on the time."""

import atexit
import multiprocessing
import os
import queue
import shutil
import tempfile
import traceback

import torch
import torch.distributed as dist

# Longer than any of these tests waits for a lost rank.
LIMIT = 600.0

_crews = {}


def _work(rank, world_size, store, jobs, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    while True:
        function, arguments = jobs.get()
        try:
            results.put((rank, None, function(rank, world_size, *arguments)))
        except BaseException:
            results.put((rank, traceback.format_exc(), None))


class Crew:
    """Processes that wait for functions to run."""

    def __init__(self, world_size):
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.mkdtemp()
        self.results = context.Queue()
        self.jobs = [context.Queue() for _ in range(world_size)]
        store = os.path.join(self.folder, "store")
        self.processes = [
            context.Process(
                target=_work,
                args=(rank, world_size, store, self.jobs[rank], self.results),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for process in self.processes:
            process.start()

    def run(self, function, arguments, answers):
        for jobs in self.jobs:
            jobs.put((function, arguments))
        found = [None] * len(self.jobs)
        for _ in range(answers):
            try:
                rank, error, found_here = self.results.get(timeout=LIMIT)
            except queue.Empty:
                raise AssertionError(f"a rank has not answered after {LIMIT} s") from None
            assert error is None, f"rank {rank}:\n{error}"
            found[rank] = found_here
        return found

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(function, world_size, *arguments, killed=()):
    """What `function(rank, world_size, *arguments)` returns in each process; of those that are
    killed, None. Processes whose job went well do the next test's."""
    crew = None if killed else _crews.pop(world_size, None)
    crew = crew or Crew(world_size)
    try:
        found = crew.run(function, arguments, world_size - len(killed))
    except BaseException:
        crew.end()
        raise
    if killed:
        crew.end()
    else:
        _crews[world_size] = crew
    return found


@atexit.register
def _end():
    for crew in _crews.values():
        crew.end()
