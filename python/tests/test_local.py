"""Local steps: DiLoCo in processes that gloo joins."""

import re

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
if int(torch.__version__.split(".")[0]) < 2:
    pytest.skip("needs PyTorch 2.1 or newer", allow_module_level=True)

import local  # noqa: E402
import own  # noqa: E402
from ranks import run  # noqa: E402

import gradwire  # noqa: E402

SCHEMES = [
    ("dense", {}),
    ("topk", {"ratio": 0.02, "chunk": 4096, "values": "2bit", "feedback": {"decay": 0.95}}),
    ("topk", {"ratio": 0.1, "feedback": {"efsgdm": 0.5}}),
    ("topk", {"ratio": 0.1, "rules": [{"match": "*.bias", "scheme": {"kind": "dense"}}]}),
    ("sidco", {"ratio": 0.05}),
    ("powersgd", {"rank": 2}),
    ("qsgd", {"bucketing": "parameter"}),
    ("dgc", {"ratio": 0.05}),
    (own.Half(), {}),
]


@pytest.mark.parametrize("scheme, settings", SCHEMES)
@pytest.mark.parametrize("outer", [None, local.NESTEROV])
def test_replicas_have_the_same_bits_after_each_round_and_learn(scheme, settings, outer):
    if scheme == "dgc" or "efsgdm" in str(settings):
        outer = None  # They bring a momentum of their own.
    ranks = run(local.train, 2, scheme, {"steps": 4, "outer": outer, **settings}, 40)
    begin, losses, rounds, made, sent = ranks[0]
    assert made == len(rounds) == 10 and sent == sum(one[3] for one in rounds)
    assert numpy.array_equal(begin, ranks[1][0])
    for one, other in zip(rounds, ranks[1][2]):
        assert numpy.array_equal(one[1], other[1])
        assert not numpy.array_equal(one[0], other[0])
    assert numpy.mean(losses[-5:]) < 0.98 * numpy.mean(losses[:5]), losses
    if scheme != "dense":
        assert rounds[-1][3] < 0.6 * 4 * begin.size


def test_four_ranks_have_the_same_bits_after_each_round():
    ranks = run(local.train, 4, "topk", {"ratio": 0.05, "steps": 3, "outer": local.NESTEROV}, 9)
    for number in range(3):
        assert all(numpy.array_equal(one[2][number][1], ranks[0][2][number][1]) for one in ranks)


@pytest.mark.parametrize("outer", [None, local.NESTEROV])
def test_dense_rounds_are_those_of_plain_pytorch_bit_for_bit(outer):
    ranks = run(local.train, 2, "dense", {"steps": 3, "outer": outer}, 12)
    plain = run(local.plain, 2, 3, 4, outer is not None)
    for (_, after, *_), expected in zip(ranks[0][2], plain[0]):
        assert numpy.array_equal(after, expected)


# Of the parameters of the tests' model, by name: the runs of whole buckets with about as many elements.
FRAGMENTS = {
    1: [["0.bias", "0.weight", "2.bias", "2.weight", "4.bias", "4.weight"]],
    2: [["0.bias", "0.weight", "2.bias"], ["2.weight", "4.bias", "4.weight"]],
    3: [["0.bias", "0.weight", "2.bias"], ["2.weight"], ["4.bias", "4.weight"]],
}


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    "steps, after, stream, count",
    [
        (4, 0, {"fragments": 2}, 11),
        (5, 3, {"fragments": 2, "delay": 1}, 15),
        (7, 0, {"fragments": 3, "delay": 1, "mix": 0.3}, 17),
        (4, 1, {"delay": 3, "mix": 0.0}, 10),
        (2, 4, {}, 4),
        (3, 2, {"fragments": 3}, 8),
    ],
)
def test_dense_streams_are_those_of_plain_pytorch_bit_for_bit(steps, after, stream, count, world_size):
    settings = {"steps": steps, "after": after, "outer": {**local.NESTEROV, **stream}}
    ranks = run(local.streamed, world_size, ("dense", settings), count, "plain")
    plain = run(local.streamed_plainly, world_size, FRAGMENTS[stream.get("fragments", 1)], settings, count)
    for (found, *_), expected in zip(ranks, plain):
        for step, ((now, _), other) in enumerate(zip(found, expected)):
            assert numpy.array_equal(now, other), step
    assert all(numpy.array_equal(one[0][-1][0], ranks[0][0][-1][0]) for one in ranks)


@pytest.mark.parametrize("scheme, settings", SCHEMES)
@pytest.mark.parametrize("stream", [{"fragments": 2, "delay": 1}, {"fragments": 3}])
def test_outer_weights_have_the_same_bits_after_each_fragment_and_models_learn(scheme, settings, stream):
    outer = {} if scheme == "dgc" or "efsgdm" in str(settings) else local.NESTEROV
    ranks = run(local.streamed, 2, (scheme, {"steps": 4, "outer": {**outer, **stream}, **settings}), 39, "normed")
    found, losses, statistics, sent, rounds = ranks[0]
    for (mine, outer), (other, same) in zip(found[:-1], ranks[1][0]):
        assert numpy.array_equal(outer, same)
        assert not numpy.array_equal(mine, other)
    assert numpy.array_equal(found[-1][0], ranks[1][0][-1][0])
    assert all(map(numpy.array_equal, statistics, ranks[1][2]))
    changes = sum(not numpy.array_equal(one[1], other[1]) for one, other in zip(found, found[1:]))
    assert changes >= 18 and rounds == 10
    assert numpy.mean(losses[-5:]) < 0.98 * numpy.mean(losses[:5]), losses
    if scheme != "dense":
        assert sent < 0.7 * 11 * 4 * found[0][1].size


def test_first_steps_exchange_gradients_and_what_is_left_of_them_becomes_progress():
    ranks = run(local.post_local, 2)
    for rank, (found, before, after, said, spoilt, later) in enumerate(ranks):
        for now, other, sent, expected in found:
            assert numpy.array_equal(now, other) and sent == expected
        assert numpy.abs(before).max() > 0
        assert numpy.array_equal(after, before * numpy.float32(0.1))
        assert re.search(["AbortedError: .*call `reduce_", "InputError: the first 3 steps exchange"][rank], said), said
        assert spoilt == (1, "0.weight", True) and later is None


def test_statistics_are_averaged_where_local_steps_begin():
    ranks = run(local.streamed, 2, ("dense", {"after": 3}), 3, "normed")
    assert ranks[0][4] == 0 and len(ranks[0][2]) == 3
    assert all(map(numpy.array_equal, ranks[0][2], ranks[1][2]))


def test_learning_rates_of_several_groups_fit_what_keeps_nothing_alone():
    assert run(local.rates, 2, "dense") == [None, None]
    for words in run(local.rates, 2, "topk"):
        assert "the learning rates [0.1, 1.1" in words and "take a scheme that keeps nothing" in words


def test_momentum_is_averaged_a_fragment_at_a_time():
    ranks = run(local.in_fragments, 2)
    for number, (mine, other) in enumerate(zip(*ranks)):
        for name in mine:
            assert numpy.array_equal(mine[name], other[name]) == (name in FRAGMENTS[2][number]), (number, name)


def test_what_is_sent_is_the_progress_and_what_was_left_of_it():
    """The exchange of arrays, given each round's weights, has the same bytes and comes to the same weights."""
    settings = {"ratio": 0.05, "feedback": {"decay": 0.95}}
    ranks = run(local.train, 2, "topk", {"steps": 3, **settings}, 12)
    from test_exchange import ranks as threads

    def rounds(end):
        exchange = gradwire.Exchange({"all": [ranks[0][0].size]}, "topk", end, **settings)
        outer, found = ranks[0][0].copy(), []
        for number, (now, *_) in enumerate(ranks[end.rank][2]):
            progress = outer - now
            sent = exchange.allreduce(number + 1, progress).wire_bytes
            outer -= progress
            found.append((outer.copy(), sent))
        return found

    # One parameter, in the order of the model's.
    for (_, after, _, sent, *_), (expected, counted) in zip(ranks[0][2], threads(2, rounds)[0]):
        assert sent == counted
        assert numpy.array_equal(after, expected)


def test_one_step_of_plain_sgd_is_training_on_mean_gradients_to_rounding():
    import jobs

    module_of = run(local.train, 2, "dense", {"steps": 1}, 1)
    gradients = run(jobs.means, 2, "dense", {}, 1)
    expected = module_of[0][0] - 0.1 * gradients[0][0][1]
    assert numpy.allclose(module_of[0][2][0][1], expected, atol=1e-6)


def test_statistics_of_batch_norm_and_momentum_are_averaged():
    ranks = run(local.train, 2, "dense", {"steps": 3, "inner": "averaged"}, 6, "normed")
    for mine, other in zip(ranks[0][2], ranks[1][2]):
        expected = (mine[4] + other[4]) * numpy.float32(0.5)
        assert not numpy.array_equal(mine[4], other[4])
        assert numpy.array_equal(mine[2], expected) and numpy.array_equal(other[2], expected)
        assert len(mine[5]) == 2 and all(map(numpy.array_equal, mine[5], other[5]))
    own_state = run(local.train, 2, "dense", {"steps": 3}, 6, "normed")
    assert not numpy.array_equal(own_state[0][2][0][2], own_state[1][2][0][2])
    assert own_state[0][4] < ranks[0][4]


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_vectors_that_some_optimizers_lack_stay_as_they_are(steps):
    (before, after, weights), (other, known, same) = run(local.uneven, 2, steps)
    assert numpy.array_equal(weights, same)
    assert len(before) == 4 and len(other) == (2 if steps == 3 else 4)
    for name, one in after.items():
        expected = (before[name] + other[name]) * numpy.float32(0.5) if name in other else before[name]
        assert numpy.array_equal(one, expected) and numpy.array_equal(known.get(name, one), expected)


def test_weights_of_sixteen_bits_have_outer_weights_of_thirty_two():
    ranks = run(local.train, 2, "topk", {"ratio": 0.1, "steps": 2}, 8, "half")
    for one, other in zip(ranks[0][2], ranks[1][2]):
        assert numpy.array_equal(one[1], other[1])


@pytest.mark.parametrize("cut", [2, 3, 4])
@pytest.mark.parametrize(
    "scheme, settings",
    [("topk", {"ratio": 0.05, "feedback": {"efsgdm": 0.5}}), ("powersgd", {"rank": 2}), ("qsgd", {})],
)
def test_a_checkpoint_goes_on_as_if_never_stopped(scheme, settings, cut, tmp_path):
    outer = None if "feedback" in settings else local.NESTEROV
    settings = {"steps": 3, "outer": outer, **settings}
    for whole, again, rounds, _ in run(local.resumed, 2, scheme, settings, cut, str(tmp_path)):
        assert rounds == 2
        assert all(numpy.array_equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("delay, cut", [*((1, cut) for cut in range(1, 8)), (0, 4), (0, 6)])
def test_a_checkpoint_within_a_stream_goes_on_as_if_never_stopped(delay, cut, tmp_path):
    outer = {**local.NESTEROV, "fragments": 2, "delay": delay}
    settings = {"steps": 4, "after": 2, "outer": outer, "bucketing": "parameter", "ratio": 0.05}
    for whole, again, rounds, away in run(local.resumed, 2, "topk", settings, cut, str(tmp_path), 11):
        assert rounds == 2 and away == (delay == 1 and cut in (4, 6))
        assert all(numpy.array_equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("world_size", [1, 4])
def test_another_number_of_ranks_takes_the_mean_that_is_on_its_way(world_size, tmp_path):
    outer = {**local.NESTEROV, "fragments": 2, "delay": 1}
    settings = {"steps": 4, "outer": outer, "bucketing": "parameter"}
    before = [told for _, told, _ in run(local.moved, 2, settings, str(tmp_path), range(4))]
    now = run(local.moved, world_size, settings, str(tmp_path), range(4, 6))
    for taken, _, weights in now:
        for key in ("mean", "outer", "outer_momentum"):
            assert numpy.abs(before[0][key]).max() > 0 and numpy.array_equal(taken[key], before[0][key]), key
        assert numpy.allclose(taken["weights"], (before[0]["weights"] + before[1]["weights"]) / 2, atol=1e-6)
        assert not numpy.array_equal(taken["outer"], now[0][1]["outer"])
        assert numpy.array_equal(weights, now[0][2])


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("feedback", [{"decay": 0.95}, {"efsgdm": 0.5}])
def test_another_number_of_ranks_keeps_mean_progress_and_residual_mass(world_size, feedback, tmp_path):
    outer = local.NESTEROV if "decay" in feedback else None
    settings = {"ratio": 0.05, "steps": 3, "outer": outer, "feedback": feedback}
    before = run(local.before, 2, "topk", settings, str(tmp_path))
    now = run(local.elsewhere, world_size, "topk", settings, str(tmp_path), world_size == 4)
    told = [one[0] for one in now]
    for key in before[0]:
        mean = sum(one[key] for one in before) / 2
        assert numpy.abs(mean).max() > 0
        assert numpy.allclose(sum(one[key] for one in told) / world_size, mean, atol=1e-6), key
    for key in {"outer", "outer_momentum", "weights"} & set(before[0]):
        assert all(numpy.array_equal(one[key], told[0][key]) for one in told)
    assert all(numpy.array_equal(one[1], now[0][1]) and one[2] == 2 for one in now)


REFUSED = {
    "steps": r"SettingError: steps = 0 is not possible",
    "half a step": r"SettingError: steps = 1.5 is not possible",
    "stranger": r"SettingError: the optimizer has a parameter of shape \[256, 64\] that is not the model's",
    "no optimizer": r"SettingError: the optimizer is a `Sequential`",
    "rate": r"SettingError: outer: learning_rate = 0.0 is not possible",
    "momentum": r"SettingError: outer: momentum = 1.0 is not possible",
    "word": r"SettingError: outer: momentum = '0.9' is not possible",
    "nesterov": r"SettingError: outer: nesterov needs a momentum",
    "unknown": r"SettingError: outer has no setting `lr`; there are learning_rate, momentum, nesterov",
    "after": r"SettingError: after = -1 is not possible",
    "half a fragment": r"SettingError: outer: fragments = 1.5 is not possible; write a whole number",
    "no fragment": r"SettingError: outer: fragments = 0 is not possible; write 1 or more",
    "many fragments": r"SettingError: outer: fragments = 4 are exchanged .* steps = 3; write fragments = 3 or fewer, or steps = 4",
    "one bucket": r"SettingError: outer: fragments = 2, and the weights lie in one run of whole buckets; .*bucketing=",
    "early": r"SettingError: outer: delay = -1 is not possible; write 0 or more",
    "late": r"SettingError: outer: delay = 2 must be below .*, 2: .*; write delay = 1 or less, or more steps",
    "too late": r"SettingError: outer: delay = 1 must be below .*, 1: .*; write delay = 0, or more steps",
    "mix": r"SettingError: outer: mix = 1.0 is not possible; write at least 0 and below 1",
    "waits": r'SettingError: inner = "averaged" waits for the ranks, and a delay of outer does not',
    "norm": r"SettingError: outer: fragments send one part .* clip_norm",
    "momentum after": r"SettingError: momentum would act on gradients in the first 2 steps",
    "inner": r"SettingError: inner = 'mine' is not possible",
    "twice": r"SettingError: momentum would act twice",
    "signs": r"SettingError: what scheme signsgd or one of its rules sends has no magnitude: .*such as 0.001",
    "signs and momentum": r"SettingError: what scheme signsgd or one of its rules sends has no magnitude",
    "signs by a rule": r"SettingError: what scheme topk or one of its rules sends has no magnitude",
    "wrapped": r"SettingError: this model is in a DistributedDataParallel",
    "disagree": r"SettingError: rank 1 has another scheme, other settings",
    "disagree on gradients": r"SettingError: rank 1 has another scheme, other settings",
    "doubles": r"InputError: .*torch.float64",
    "saved": r"StateError: saved state: it is none of local steps",
    "short": r"StateError: saved state: its outer of `2.bias` has 1 elements where 256 are needed",
    "groups": r"StateError: saved state: its optimizer has other groups",
    "no optimizer saved": r"StateError: saved state: its optimizer has other groups",
    "not done": r"StateError: saved state: it does not say how many steps",
    "no rounds": r"StateError: saved state: it does not say .* how many rounds, are done",
    "gradients": r"StateError: saved state: 2 more steps of it exchange gradients, and here after = 0",
    "fragments": r"StateError: saved state: its weights have 2 fragments, and here 1",
    "no such fragment": r"StateError: saved state: its weights have 1 fragments",
    "no due": r"StateError: saved state: it does not say in which step the mean",
    "short mean": r"StateError: saved state: its mean of `2.bias` has 1 elements where 256",
}


def test_bad_input_is_refused_on_every_rank():
    for said, goes_on in run(local.refused, 2):
        assert goes_on
        assert set(said) == set(REFUSED)
        for name, words in REFUSED.items():
            assert re.search(words, said[name]), (name, said[name])


def test_weights_that_are_not_finite_stop_the_round_on_every_rank_and_no_other():
    ranks = run(local.not_finite, 2)
    for words, rank, parameter, unchanged, again, rounds, after in ranks:
        assert (rank, parameter) == (1, "2.weight") and "rank 1" in words, words
        assert unchanged and again and rounds == 2
        assert numpy.array_equal(after, ranks[0][6])


def test_weights_that_are_not_finite_stop_an_exchange_on_its_way_on_every_rank():
    ranks = run(local.late_and_not_finite, 2)
    for found, unchanged, again, weights in ranks:
        assert found == [(1, "0.weight")] * 2
        assert unchanged and again == [False, True]
        assert numpy.array_equal(weights, ranks[0][3])


def test_ranks_go_on_while_an_exchange_is_on_its_way():
    (mine, outer), (other, same) = run(local.beside, 2)
    assert len(mine) == len(other) == 1 and numpy.array_equal(outer, same)


def test_a_rank_that_refuses_an_exchange_stops_it_on_every_rank():
    ranks = run(local.one_refuses, 2)
    assert all("rank 1 gave up" in said and "`0.weight` is trained" in said for said, _ in ranks)
    assert numpy.array_equal(ranks[0][1], ranks[1][1])


@pytest.mark.parametrize(
    "settings", [{"steps": 2}, {"steps": 5, "outer": {"delay": 2}}, {"steps": 2, "after": 6}, {"steps": 3, "outer": {"delay": 1}}]
)
def test_a_rank_that_is_lost_within_a_round_is_named(settings):
    rank, words = run(local.lost, 2, settings, killed=(1,))[0]
    assert rank == 1 and "rank 1 is gone" in words


def test_a_saved_state_stays_what_it_was_and_holds_the_statistics_that_the_model_has_now():
    ranks = run(local.returned, 2)
    for first, again in ranks:
        assert all(numpy.array_equal(one, other) for one, other in zip(first, again))
    # A round has ended: the statistics are those of both ranks.
    assert numpy.array_equal(ranks[0][0][1], ranks[1][0][1])


def test_local_steps_across_groups_that_average_in_every_step():
    ranks = run(local.in_groups, 4)
    assert all(numpy.array_equal(one, ranks[0][0]) and rounds == 2 for one, rounds in ranks)


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5), reason="needs PyTorch 2.5 or newer"
)
def test_local_steps_across_groups_that_a_model_is_divided_over():
    ranks = run(local.sharded_in_groups, 4)
    for divided, whole, rounds in ranks:
        assert numpy.array_equal(divided, ranks[0][0]) and rounds == 2
        assert numpy.allclose(divided, whole, atol=1e-6)


def test_what_is_not_trained_is_rank_zeros_and_may_not_be_trained_later():
    ranks = run(local.unfrozen, 2)
    for kept, _, words in ranks:
        assert numpy.array_equal(kept, local.model()[0].weight.detach().numpy())
        assert "`0.weight` is trained, and was not" in words
