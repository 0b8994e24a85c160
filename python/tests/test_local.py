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
    for whole, again, rounds in run(local.resumed, 2, scheme, settings, cut, str(tmp_path)):
        assert rounds == 2
        assert all(numpy.array_equal(whole[name], again[name]) for name in whole)


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
    "inner": r"SettingError: inner = 'mine' is not possible",
    "twice": r"SettingError: momentum would act twice",
    "signs": r"SettingError: what scheme signsgd or one of its rules sends has no magnitude: .*such as 0.001",
    "signs and momentum": r"SettingError: what scheme signsgd or one of its rules sends has no magnitude",
    "signs by a rule": r"SettingError: what scheme topk or one of its rules sends has no magnitude",
    "wrapped": r"SettingError: this model is in a DistributedDataParallel",
    "disagree": r"SettingError: rank 1 has another scheme, other settings",
    "doubles": r"InputError: .*torch.float64",
    "saved": r"StateError: saved state: it is none of local steps",
    "short": r"StateError: saved state: its outer of `2.bias` has 1 elements where 256 are needed",
    "groups": r"StateError: saved state: its optimizer has other groups",
    "no optimizer saved": r"StateError: saved state: its optimizer has other groups",
    "not done": r"StateError: saved state: it does not say how many steps",
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


def test_a_rank_that_is_lost_within_a_round_is_named():
    rank, words = run(local.lost, 2, killed=(1,))[0]
    assert rank == 1 and "rank 1 is gone" in words


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
