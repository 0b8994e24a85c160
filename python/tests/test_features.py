"""What PyTorch can do beside the hook: works as without a hook, or is refused by name."""

import re

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
    pytest.skip("these tests need PyTorch 2.5 or newer", allow_module_level=True)

import features  # noqa: E402
from torch.distributed import fsdp  # noqa: E402
import own  # noqa: E402
from ranks import run  # noqa: E402


@pytest.mark.parametrize(
    "feature",
    [
        "accumulated",
        "unused",
        "static_graph",
        "bucket_views",
        "checkpointed",
        "autocast",
        "compiled_model",
        "compiled_wrapper",
        "tied",
        "several_models",
        "adversaries",
        "divided_optimizer",
        "forked_loaders",
        "sparse",
        "joined",
    ],
)
def test_training_is_that_without_a_hook(feature):
    (plain, dense, sparse), (_, other_dense, other_sparse) = run(features.compare, 2, feature)
    # Rows of a sparse gradient that come twice are added up in another order without a hook.
    apart = numpy.abs(plain - dense).max()
    assert apart <= 1e-6 if feature == "sparse" else apart == 0
    assert numpy.array_equal(dense, other_dense)
    assert numpy.array_equal(sparse, other_sparse)
    assert not numpy.array_equal(sparse, plain)


REFUSED = {
    "compiled autograd": "with compiled autograd .* one gradient at a time",
    "another hook": "has a hook already, and takes no other",
    "optimizer in backward": "without optimizers in backward",
    "join": r"divide_by_initial_world_size=False\) is not followed",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused_on_every_rank(what):
    for said in run(features.refused, 2, what):
        assert said is not None and re.search(REFUSED[what], said), said


def test_compiled_autograd_is_refused_in_backward():
    for said in run(features.compiled_autograd, 2):
        assert said is not None and "one gradient at a time" in said, said


def test_a_static_graph_of_several_types_is_refused_in_backward():
    for said in run(features.static_graph_of_types, 2):
        assert said is not None and "static_graph=True does so" in said, said


def test_an_averager_takes_sparse_gradients():
    ranks = run(features.sparse_in_an_averager, 2)
    for number, mean in enumerate(ranks[0][1]):
        expected = (ranks[0][0][number] + ranks[1][0][number]) * numpy.float32(0.5)
        assert numpy.array_equal(mean, expected)
        assert numpy.array_equal(mean, ranks[1][1][number])


def test_residuals_of_what_is_left_survive_freezing():
    ranks = run(features.frozen, 2, True)
    for said, names, _ in ranks:
        assert names == ["2.bias", "2.weight", "4.bias", "4.weight"]
        assert len(said) == 1 and "['0.bias', '0.weight']" in said[0], said
    for name in ranks[0][1]:
        # Both ranks' residuals and gradients are what came, twice, and what is left.
        before, own, _, left = (sum(rank[2][i][name] for rank in ranks) for i in range(4))
        assert numpy.allclose(before + own, 2 * ranks[0][2][2][name] + left, atol=1e-6)
        assert numpy.abs(before).max() > 0


def test_numbered_parameters_are_not_taken_for_others():
    for said in run(features.frozen, 2, False):
        assert "it is of another model" in said and "`parameters=` gives their names" in said, said


@pytest.mark.parametrize("scales", [[1024.0, 512.0, 2048.0, 1.0], [65536.0, 3.0, 0.5, 65536.0]])
def test_residuals_are_kept_without_the_scale(scales):
    ranks = run(features.scaled_conservation, 2, scales)
    assert all(rank[3] == len(scales) for rank in ranks)
    given = sum(rank[0] for rank in ranks)
    left = sum(rank[2] for rank in ranks)
    assert numpy.allclose(given, 2 * ranks[0][1] + left, atol=1e-5)
    assert numpy.array_equal(ranks[0][1], ranks[1][1])
    assert numpy.abs(left).max() > 1e-4


def test_ranks_skip_together_with_a_scaler_in_the_state():
    ranks = run(features.scaler_skips, 2)
    for found, weights, step in ranks:
        assert found == [(1024.0, True), (512.0, False), (512.0, True)]
        assert step == 2 and numpy.isfinite(weights).all()
        assert numpy.array_equal(weights, ranks[0][1])


def test_a_scaler_that_is_off_leaves_what_is_not_finite_an_error():
    for found in run(features.scaler_off, 2):
        assert found is not None and found[1]
        assert "non-finite gradient on rank 1 at step 1" in found[0], found


def test_a_momentum_is_shared_in_every_step():
    mine, other = run(features.shared_momentum, 2)
    momentum = 0.0
    for (one, came), (two, same) in zip(mine, other):
        momentum = 0.5 * momentum + 0.5 * (one + two) / 2
        assert numpy.array_equal(came, same)
        assert numpy.allclose(came, momentum, atol=1e-6)


def test_the_state_of_a_compiled_model_is_that_of_the_plain_one():
    for names, plain, compiled, loaded in run(features.names_of_compiled, 2):
        assert names == plain
        assert numpy.array_equal(compiled, loaded)


def test_a_rank_that_leaves_while_it_has_joined_is_named():
    timeout = 20.0
    said, seconds = run(features.leaves_while_others_join, 2, timeout, killed=(1,))[0]
    assert said is not None and "rank 1 is gone" in said, said
    assert seconds < timeout


@pytest.mark.parametrize("before, now", [(3, 2), (1, 2), (2, 4)])
def test_another_number_of_ranks_keeps_what_is_still_to_come(before, now):
    residuals = [numpy.random.default_rng(i).normal(size=100) for i in range(before)]
    head = {"version": 1, "scheme": "topk", "step": 7, "world_size": before, "compressors": {}}
    head.update(parameters={"weight": [100]}, buckets=[["weight"]])
    saved = [
        dict(head, rank=i, residual={"weight": torch.tensor(one, dtype=torch.float32)})
        for i, one in enumerate(residuals)
    ]
    ranks = run(features.other_world, now, {"version": 1, "ranks": saved})
    left = sum(rank[0] for rank in ranks) / now
    assert numpy.allclose(left + ranks[0][1], sum(residuals) / before, atol=1e-5)
    assert all(step == 8 for _, _, step in ranks)


def test_what_ranks_have_learnt_apart_is_not_dealt_out():
    head = {"version": 1, "scheme": "Smoothed", "step": 7, "parameters": {"weight": [100]}, "buckets": [["weight"]]}
    saved = [
        dict(head, rank=i, world_size=3, compressors={"bucket.0/known": torch.full((3,), float(i))})
        for i in range(3)
    ]
    averager = run(refused_state, 2, {"version": 1, "ranks": saved})
    assert all("has learnt something else on each of them" in said for said in averager)


def refused_state(rank, world_size, saved):
    import gradwire.torch

    averager = gradwire.torch.Averager(own.Smoothed(), timeout=30)
    return features.said_by(lambda: averager.load_state_dict(saved))


def test_a_state_goes_on_in_groups_that_are_made_anew(tmp_path):
    for whole, parts in run(features.remade, 2, str(tmp_path)):
        assert numpy.array_equal(whole, parts)


def test_fully_shard_without_compression_is_distributed_data_parallel():
    for sharded, ddp, _ in run(features.sharded, 2, None, {}):
        assert numpy.array_equal(sharded, ddp)
    for sharded, ddp, _ in run(features.sharded, 2, "dense", {}):
        assert numpy.array_equal(sharded, ddp)


@pytest.mark.parametrize("scheme", ["topk", "powersgd", "sidco"])
def test_fully_shard_compresses_as_distributed_data_parallel_does(scheme):
    ranks = run(features.sharded, 2, scheme, {"bucketing": "parameter"})
    for sharded, ddp, (step, sent, units, names) in ranks:
        # PowerSGD draws its first factor by the number of the bucket, which is counted in each unit.
        assert scheme == "powersgd" or numpy.array_equal(sharded, ddp)
        assert numpy.array_equal(sharded, ranks[0][0])
        assert step == 3 and sent > 0 and units == ["", "0", "4"]
        assert names == sorted(f"{i}.{kind}" for i in (0, 2, 4) for kind in ("bias", "weight"))


def test_rules_go_to_the_units_that_have_their_parameters():
    rules = [{"match": "0.weight", "scheme": "half"}, {"match": "*.bias", "scheme": "dense"}]
    for sharded, ddp, (_, _, units, _) in run(features.sharded, 2, "topk", {"bucketing": "parameter", "rules": rules}):
        assert numpy.array_equal(sharded, ddp) and units == ["", "0", "4"]


def test_units_that_are_divided_over_different_ranks_are_refused():
    for said in run(features.sharded_over_several, 4):
        assert said is not None and "give all of `fully_shard` the same mesh" in said, said


def test_what_a_group_has_saved_goes_back_to_the_same_ranks(tmp_path):
    for before, gathered, loaded, said in run(features.states_of_groups, 4, str(tmp_path)):
        assert numpy.array_equal(gathered, before) and numpy.array_equal(loaded, before)
        assert all(one is not None and "it is of the ranks [" in one for one in said), said


def test_a_checkpoint_of_fully_shard_goes_on_as_if_never_stopped():
    for whole, again, step in run(features.sharded_resumed, 2):
        assert numpy.array_equal(whole, again) and step == 4
    for whole, again, step in run(features.sharded_with_a_late_head, 2):
        assert numpy.array_equal(whole, again) and step == 2


@pytest.mark.skipif(
    not hasattr(fsdp.FSDPModule, "set_reduce_scatter_unused_params"),
    reason="needs a PyTorch whose fully_shard reduces parameters without a gradient",
)
@pytest.mark.parametrize("scheme, settings", [("dense", {}), ("topk", {"ratio": 0.1})])
def test_fully_shard_takes_what_has_no_gradient_for_zero(scheme, settings):
    ranks = run(features.sharded_and_unused, 2, scheme, settings)
    for divided, whole, step in ranks:
        assert numpy.array_equal(divided, whole) and step == 4
        assert numpy.array_equal(divided, ranks[0][0])


def test_what_does_not_go_together_with_fully_shard_is_refused():
    for (twice, hooked, wrapped, plain, named, ruled, *clipped), step in run(features.sharded_and_refused, 2):
        assert "compressed already" in twice
        assert "divided over ranks" in hooked and "gradwire.fsdp.compress" in hooked
        assert "use either `fully_shard` or DistributedDataParallel" in wrapped
        assert "call it first" in plain
        assert "`parameters` is an argument of State alone" in named
        assert "`9.*` matches no parameter; the names begin with 0, 2, 4" in ruled, ruled
        assert all("clip_norm needs the norm of the whole gradient" in said for said in clipped), clipped
        assert "non-finite gradient on rank 1 at step 1" in step, step


def test_gradients_of_several_types_in_one_unit_are_refused():
    for said in run(features.sharded_of_types, 2):
        assert "have the types ['torch.bfloat16', 'torch.float32']" in said, said


def test_distributed_checkpoints_go_on_and_fit_another_number_of_ranks(tmp_path):
    before = run(features.sharded_checkpoint, 2, str(tmp_path))
    for whole, again, _, said in before:
        assert numpy.array_equal(whole, again)
        assert "to save, give Checkpoint(state)" in said, said
    now = run(features.sharded_elsewhere, 4, str(tmp_path))
    for name, one in before[0][2].items():
        owed = (one + before[1][2][name]) / 2
        assert numpy.abs(owed).max() > 0
        assert numpy.allclose(sum(left[name] for left, _ in now) / 4, owed, atol=1e-6)
    assert all(step == 3 for _, step in now)


def test_an_averager_takes_shards_across_groups_that_a_model_is_divided_over():
    ranks = run(features.averaged_shards, 4, "dense", {})
    length = ranks[0][0].size - 10  # The last bias is left out: it is that of the pair.
    expected = sum(rank[1] for rank in ranks) / 4
    for rank, (mean, _, elements) in enumerate(ranks):
        assert numpy.allclose(mean[:length], expected[:length], atol=1e-6)
        pair = (ranks[rank // 2 * 2][1] + ranks[rank // 2 * 2 + 1][1]) / 2
        assert numpy.allclose(mean[length:], pair[length:], atol=1e-6)
        assert elements == length // 2
    sparse = run(features.averaged_shards, 4, "topk", {"ratio": 0.1})
    assert all(numpy.array_equal(one[0][:length], sparse[0][0][:length]) for one in sparse)


def test_a_hook_is_pickled_and_its_state_says_what_to_keep():
    for said in run(features.pickled, 2):
        assert all("keep its `state_dict()`" in one for one in said), said


@pytest.mark.parametrize("wrapper", ["fp16_compress_wrapper", "bf16_compress_wrapper"])
def test_hooks_of_pytorch_may_be_put_around(wrapper):
    ranks = run(features.around, 2, wrapper)
    expected = (ranks[0][0] + ranks[1][0]) / 2
    for _, mean, _ in ranks:
        assert numpy.array_equal(mean, ranks[0][1])
        assert numpy.abs(mean - expected).max() < 0.01 * numpy.abs(expected).max()
