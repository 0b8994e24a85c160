"""The communication hook and the Averager, in processes that gloo joins."""

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import jobs  # noqa: E402
import own  # noqa: E402
from ranks import run  # noqa: E402

import gradwire.torch  # noqa: E402

YOUNG = pytest.mark.skipif(
    int(torch.__version__.split(".")[0]) < 2, reason="needs PyTorch 2.1 or newer"
)
SCHEMES = [
    ("dense", {}),
    ("topk", {"ratio": 0.05}),
    ("topk", {"ratio": 0.05, "bucketing": "parameter"}),
    ("topk", {"ratio": 0.05, "bucketing": 100_000}),
    ("sidco", {"ratio": 0.05}),
    ("dqsgd", {}),
    ("casq", {"bits": 2}),
    ("powersgd", {"rank": 2, "start_step": 3}),
    ("qsgd", {"start_step": 4, "dense_below": 300}),
]


def rank_order_mean(own):
    total = own[0].copy()
    for one in own[1:]:
        total += one
    return total * numpy.float32(1 / len(own))


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_dense_hook_is_the_mean_in_order_of_rank_bit_for_bit(world_size):
    ranks = run(jobs.means, world_size, "dense", {}, 4)
    for step in range(4):
        expected = rank_order_mean([rank[step][0] for rank in ranks])
        for rank in ranks:
            assert numpy.array_equal(rank[step][1], expected)


def test_two_ranks_with_the_dense_hook_are_ddp_without_a_hook_bit_for_bit():
    hooked = run(jobs.means, 2, "dense", {}, 4)
    plain = run(jobs.without_hook, 2, 4)
    for step in range(4):
        assert numpy.array_equal(hooked[0][step][1], plain[0][step])


def test_four_ranks_differ_from_ddp_by_the_order_of_three_additions():
    hooked = run(jobs.means, 4, "dense", {}, 2)
    plain = run(jobs.without_hook, 4, 2)
    for step in range(2):
        size = sum(numpy.abs(rank[step][0]) for rank in hooked) / 4
        apart = numpy.abs(hooked[0][step][1] - plain[0][step])
        assert (apart <= 3 * numpy.finfo(numpy.float32).eps * size).all()


@pytest.mark.parametrize(
    "scheme, settings",
    [("dense", {}), ("half", {}), ("half", {"format": "bf16"}),
     ("qsgd", {"levels": 127, "norm": "linf", "block": 0, "dense_below": 0})],
)
def test_gradients_are_as_close_to_ddps_as_pytorch_asks_of_its_own_hooks(scheme, settings):
    """Its allreduce, fp16 and quantisation of eight bits, on inputs that differ in size from rank to rank."""
    for plain, hooked in run(jobs.as_pytorch_tests_its_hooks, 2, scheme, settings):
        numpy.testing.assert_allclose(hooked, plain, rtol=1e-5, atol=0 if scheme == "dense" else 1e-4)
        assert scheme == "dense" or not numpy.array_equal(hooked, plain)


@pytest.mark.parametrize("scheme, settings", SCHEMES)
def test_replicas_stay_bit_identical_and_learn(scheme, settings):
    ranks = run(jobs.train, 2, scheme, settings, 40)
    losses, weights, sent, step, total = ranks[0]
    assert numpy.array_equal(weights, ranks[1][1])
    assert step == 40 and total == sum(sent)
    assert numpy.mean(losses[-5:]) < 0.98 * numpy.mean(losses[:5]), losses
    if scheme != "dense":
        assert sent[-1] < sent[0] if "start_step" in settings else sent[-1] < 4 * weights.size / 2


def test_four_ranks_train_with_two_rounds():
    ranks = run(jobs.train, 4, "powersgd", {"rank": 2}, 10)
    assert all(numpy.array_equal(ranks[0][1], rank[1]) for rank in ranks)


def test_before_start_step_the_mean_is_exact():
    ranks = run(jobs.means, 2, "topk", {"start_step": 3, "ratio": 0.01}, 4)
    for step in range(4):
        expected = rank_order_mean([rank[step][0] for rank in ranks])
        exact = numpy.array_equal(ranks[0][step][1], expected)
        assert exact == (step < 2)


def test_error_feedback_loses_nothing():
    """What all ranks have sent is what they had, but for the residuals: of a gradient that stays."""
    ranks = run(jobs.means, 2, "topk", {"ratio": 0.3, "feedback": True}, 30)
    own = sum(rank_order_mean([rank[step][0] for rank in ranks]) for step in range(30))
    sent = sum(ranks[0][step][1] for step in range(30))
    plain = run(jobs.means, 2, "topk", {"ratio": 0.3, "feedback": False}, 30)
    without = sum(plain[0][step][1] for step in range(30))
    assert numpy.linalg.norm(own - sent) < 0.5 * numpy.linalg.norm(own - without)


@YOUNG
@pytest.mark.parametrize("bucket_cap_mb", [0.05, 25])
def test_buckets_that_ddp_makes_anew_change_no_bit(bucket_cap_mb):
    ranks = run(jobs.groups_of_steps, 2, bucket_cap_mb)
    (groups, weights), other = ranks
    assert numpy.array_equal(weights, other[1])
    assert (max(groups) > 1) == (bucket_cap_mb < 1), groups
    whole = run(jobs.groups_of_steps, 2, 25)
    assert numpy.array_equal(weights, whole[0][1])


@YOUNG
@pytest.mark.parametrize(
    "scheme, before", [("dense", True), ("half", True), ("nonzero", True), ("topk", False)]
)
def test_what_has_the_same_bits_in_any_buckets_leaves_beside_the_backward_pass(scheme, before):
    assert run(jobs.overlapped, 2, scheme) == [[before]] * 2


@YOUNG
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("world_size, scheme", [(2, "dense"), (4, "dense"), (2, "nonzero")])
def test_gradients_of_sixteen_bits(dtype, world_size, scheme):
    """Rounded once, from the mean in float32; and `dense` sends them as they are."""
    ranks = run(jobs.half, world_size, scheme, dtype)
    expected = torch.from_numpy(rank_order_mean([rank[0] for rank in ranks])).to(dtype).float()
    for _, mean, name, sent in ranks:
        assert name == str(dtype)
        assert numpy.array_equal(mean, expected.numpy())
        assert (sent < 2.01 * mean.size) == (scheme == "dense")


@pytest.mark.parametrize(
    "scheme, settings",
    [
        ("topk", {"ratio": 0.05}),
        ("powersgd", {"rank": 2}),
        ("alq", {}),
        ("qsgd", {}),
        (own.Smoothed(), {"bucketing": "parameter"}),
    ],
)
def test_a_checkpoint_of_every_rank_goes_on_as_if_never_stopped(scheme, settings, tmp_path):
    ranks = run(jobs.resumed, 2, scheme, settings, str(tmp_path))
    for whole, again, step, _ in ranks:
        assert numpy.array_equal(whole, again)
        assert step == 6
    residuals = ranks[0][3]
    if scheme == "topk":
        names = [f"parameter.{i}" for i in range(6)]
        assert sorted(residuals[0]) == names
        assert any((residuals[0][one] != residuals[1][one]).any() for one in names)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    "scheme, settings", [("topk", {}), ("powersgd", {"bucketing": "parameter"}), ("dense", {})]
)
def test_a_killed_rank_is_named_by_all_others(victim, scheme, settings):
    timeout = 20.0
    ranks = run(jobs.killed, 3, scheme, settings, victim, jobs.KILL, timeout, killed=(victim,))
    for rank, said in enumerate(ranks):
        if rank == victim:
            continue
        words, seconds, again, blamed = said
        assert f"rank {victim} is gone" in words, words
        assert seconds < timeout
        assert (again, blamed) == ("PeerLostError", victim)


@pytest.mark.parametrize("scheme", ["topk", "dense"])
def test_a_rank_that_stands_still_is_named_within_the_timeout(scheme):
    timeout = 10.0
    ranks = run(jobs.killed, 2, scheme, {}, 1, jobs.STOP, timeout, killed=(1,))
    words, seconds, again, blamed = ranks[0]
    assert "rank 1 was silent for 10" in words, words
    assert timeout - 0.5 < seconds < 3 * timeout
    assert (again, blamed) == ("PeerTimeoutError", 1)


def test_a_rank_that_never_comes_is_named():
    said, *_ = run(jobs.missing_rank, 2, 5.0)
    words, blamed, seconds, gradient, again, after = said
    assert "rank 1 was silent for 5" in words and blamed == 1
    assert "broken since then" in again and after == 5
    assert seconds < 15 and gradient == [1.0, 1.0, 1.0]


def test_a_state_waits_no_longer_than_its_timeout_for_a_rank_that_makes_none():
    kind, words, seconds = run(jobs.state_without_peer, 2, 3.0, killed=(1,))[0]
    assert kind == "TransportError" and "have not met within timeout = 3 s" in words, words
    assert seconds < 15


def test_a_gradient_that_is_not_finite_stops_the_step_on_every_rank_and_no_other():
    ranks = run(jobs.not_finite, 2)
    for found, step, _ in ranks:
        assert found[0] is None and found[2] is None
        words, blamed, at, parameter, index, unchanged = found[1]
        assert (blamed, at, parameter, index) == (1, 2, "2.weight", 3 * 256 + 4), words
        assert unchanged and "rank 1" in words and "2.weight" in words
        assert step == 2
    assert numpy.array_equal(ranks[0][2], ranks[1][2])


@pytest.mark.parametrize("scheme", ["topk", "dense"])
@pytest.mark.parametrize("rank", [1, None])
def test_backward_says_which_rank_has_no_finite_gradient(scheme, rank):
    if scheme == "topk" and rank is None:
        pytest.skip("what it sends of it may be finite")
    said = "non-finite gradient on rank 1 at step 2" if rank else "the mean"
    ranks = run(jobs.not_finite_in_ddp, 2, scheme, rank)
    for words, step, failure, after, mean in ranks:
        assert said in words and "step 2" in words, words
        assert step == 1 and failure is None and after == 2
        assert numpy.array_equal(mean, ranks[0][4])


def test_an_own_loop_with_an_averager():
    ranks = run(jobs.averaged, 2, "topk", {"ratio": 0.05}, 40)
    losses = ranks[0][0]
    assert numpy.array_equal(ranks[0][1], ranks[1][1])
    assert numpy.mean(losses[-5:]) < 0.98 * numpy.mean(losses[:5])


@YOUNG
def test_a_default_device_and_type_of_the_program_are_none_of_the_exchange():
    ranks = run(jobs.beside_a_default_device, 2)
    expected = rank_order_mean([own for own, *_ in ranks])
    for _, *means in ranks:
        assert all(numpy.array_equal(mean, expected) for mean in means)


def test_ddp_and_averager_send_the_same_bytes_for_the_same_gradients():
    for scheme, settings in [("topk", {"ratio": 0.05}), ("qsgd", {}), ("powersgd", {})]:
        averaged = run(jobs.averaged, 2, scheme, settings, 1)
        hooked = run(jobs.means, 2, scheme, settings, 1)
        assert averaged[0][2] == hooked[0][0][2], scheme


def test_a_parameter_that_one_rank_does_not_use_counts_as_zero_there():
    ranks = run(jobs.missing_gradient, 2)
    for _, mean in ranks:
        assert numpy.array_equal(mean, ranks[0][0] * numpy.float32(0.5))


@YOUNG
def test_groups_of_ranks_average_for_themselves():
    ranks = run(jobs.subgroup, 4)
    assert [one[0] for one in ranks] == [[0.5] * 3, [0.5] * 3, [2.5] * 3, [2.5] * 3]
    assert [one[1:] for one in ranks] == [(0, 2), (1, 2), (0, 2), (1, 2)]


@YOUNG
def test_a_state_averages_over_the_ranks_of_its_wrapper():
    ranks = run(jobs.subgroup_of_ddp, 4)
    for rank, (_, mean, said) in enumerate(ranks):
        pair = rank // 2 * 2
        assert numpy.array_equal(mean, rank_order_mean([ranks[pair][0], ranks[pair + 1][0]]))
        assert said is not None and f"[{pair}, {pair + 1}]; leave process_group out" in said, said


def test_states_are_gathered_where_it_is_asked_for():
    (first, none, said), (second, found, _) = run(jobs.gathered, 2)
    assert none is None and len(found) == 2
    assert numpy.array_equal(found[0], first) and numpy.array_equal(found[1], second)
    assert said is not None and "destination = 2 is none of the 2 ranks" in said, said


def test_nothing_of_a_gathered_state_runs():
    said, ran = run(jobs.gathered_with_code, 2)[0]
    assert said is not None and "what rank 1 has saved cannot be read" in said, said
    assert not ran


MISFITS = {
    "nothing": "its scheme is missing",
    "no rank": "its rank is missing",
    "no compressors": "its compressors is missing",
    "a word for a step": "its step is missing, or is no int",
    "no shape": "the shape of parameter `weight` is '100'",
    "no tensor": "its entry `seed` is a `int`",
    "one element": "its residual of `weight` has 1 elements where 100 are needed",
    "too many elements": "its residual of `weight` has 101 elements where 100 are needed",
    "a list": "its residual of `weight` has 0 elements",
    "another name": "its residual is not of the parameters",
    "no name": "its residual is not of the parameters",
    "no ranks": "it holds no rank's part",
    "not in order": "its rank is 1, and not 0",
    "too few ranks": "its world_size is 2, and not 1",
    "ranks apart": "rank 1's part is of another step",
    "another group": "it is of the ranks [0, 3]",
    "other buckets": "what the scheme `topk` has learnt is of other buckets",
}


def test_saved_states_that_do_not_fit_are_refused_and_change_nothing():
    said, kept, residual = run(jobs.misfits, 1)[0]
    assert set(said) == set(MISFITS)
    for name, words in MISFITS.items():
        assert words in said[name], (name, said[name])
    assert kept and residual == [2.0] * 100


def test_residuals_are_in_the_order_of_shapes_whatever_the_order_in_memory():
    for hooked, averaged, mean, expected in run(jobs.in_memory_order, 2):
        assert all(numpy.array_equal(hooked[name], averaged[name]) for name in averaged)
        assert numpy.array_equal(mean, expected) and numpy.abs(mean).max() > 0


def test_numbers_of_numpy_are_settings():
    given = {"seed": numpy.int64(3), "dense_below": numpy.uint8(9), "momentum_correction": numpy.float32(0.5)}
    plain = {"seed": 3, "dense_below": 9, "momentum_correction": 0.5}
    mine, expected = (run(jobs.averaged, 2, "topk", one, 2) for one in (given, plain))
    assert numpy.array_equal(mine[0][1], expected[0][1])


def test_names_are_for_a_state_alone():
    with pytest.raises(gradwire.SettingError, match="`parameters` is an argument of State alone"):
        gradwire.torch.Averager("topk", parameters=jobs.model())


@pytest.mark.parametrize("what", ["scheme", "model", "seed"])
def test_ranks_that_do_not_agree_are_told_so(what):
    for kind, words in run(jobs.different, 2, what):
        assert kind == "SettingError" and "rank 1 has another scheme" in words


def test_what_belongs_to_another_model_is_refused_and_the_first_goes_on():
    for twice, stranger, fewer in run(jobs.another_model, 2):
        assert "can only be called once" in twice
        assert "make a State for each DistributedDataParallel" in stranger, stranger
        assert "make an Averager for each model" in fewer


def test_a_rank_that_gives_up_a_step_is_heard_and_the_next_step_works():
    ranks = run(jobs.aborted, 2)
    assert ranks[1][0][0] == "InputError"
    kind, words = ranks[0][0]
    assert kind == "AbortedError" and words.startswith("rank 1 gave up at step 2"), words
    assert [rank[1] for rank in ranks] == [2, 2]


def test_gradients_that_are_accumulated_are_exchanged_once():
    ranks = run(jobs.accumulated, 2)
    expected = rank_order_mean([rank[0] for rank in ranks])
    for _, mean, step in ranks:
        assert numpy.array_equal(mean, expected)
        assert step == 2


def test_a_rank_that_leaves_in_the_middle_of_a_step_is_named():
    own, other = run(jobs.half_a_step, 2)
    assert own == "own"
    assert "rank 0 is gone" in other, other


@pytest.mark.parametrize("giving_up_fails", [False, True])
def test_backward_raises_when_pytorch_takes_no_more_messages(giving_up_fails):
    for words, seconds, failure in run(jobs.refused, 2, giving_up_fails):
        assert "no such group" in words, words
        assert seconds < 10
        assert failure == ("ValueError" if giving_up_fails else "TransportError")


def test_backward_raises_and_close_does_not_after_destroy_process_group(tmp_path):
    for words, seconds, failure in run(jobs.destroyed, 2, str(tmp_path)):
        # PyTorch before 2 has one type of error for this and for a lost peer.
        assert "PyTorch no longer knows the group" in words or "is gone" in words, words
        assert seconds < 10
        assert failure in ("TransportError", "PeerLostError")


def test_a_state_without_its_residual_is_not_saved():
    for words in run(jobs.saved_too_late, 2):
        assert "the state has been closed" in words and "earlier checkpoint" in words, words


def test_an_averager_brings_the_residual_of_a_parameter_that_no_rank_uses():
    for brought, expected in run(jobs.unused, 2):
        assert brought == expected


@pytest.mark.parametrize(
    "scheme, settings, find, warns",
    [
        ("topk", {}, True, True),
        ("topk", {}, False, False),
        ("topk", {"feedback": False}, True, False),
        ("dense", {}, True, False),
    ],
)
def test_unused_parameters_with_feedback_are_warned_about(scheme, settings, find, warns):
    for said in run(jobs.warned, 2, scheme, settings, find):
        assert len(said) == warns and all("find_unused_parameters" in one for one in said), said


@pytest.mark.parametrize(
    "kind, scheme, settings, warns",
    [
        ("State", "dgc", {}, True),
        ("Averager", "dgc", {}, True),
        ("State", "dgc", {"momentum_correction": 0}, False),
        ("State", "dgc", {"momentum_correction": 0.9}, False),
        ("State", "dgc", {"feedback": False}, False),
        ("Averager", "topk", {}, False),
    ],
)
def test_momentum_that_nobody_asked_for_is_warned_about(kind, scheme, settings, warns):
    for said in run(jobs.warned_of_momentum, 2, kind, scheme, settings):
        assert len(said) == warns and all("momentum_correction" in one for one in said), said


def test_a_name_that_is_given_twice_is_refused_and_the_next_step_works():
    for rank, (words, before, means) in enumerate(run(jobs.named_twice, 2)):
        assert words is not None and "`first`" in words, words
        assert before == [[float(rank)] * 2] * 2
        assert means == [[0.5] * 2] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_gradients_that_float32_does_not_hold_are_refused(dtype):
    for words, unchanged, mean in run(jobs.other_types, 2, dtype):
        assert words is not None and "`scale`" in words and str(dtype) in words, words
        assert unchanged and mean == [0.5] * 3


def test_backward_refuses_gradients_of_sixty_four_bits():
    for found in run(jobs.doubles_in_ddp, 2):
        assert found is not None
        words, failure = found
        assert "`parameter." in words and "torch.float64" in words, words
        assert failure is None


@pytest.mark.parametrize("settings", [{}, {"bucketing": "parameter"}])
def test_a_state_from_before_the_first_step_goes_back_to_the_beginning(settings):
    for first, again, begun, step in run(jobs.back_to_the_beginning, 2, {"ratio": 0.1, **settings}):
        assert (begun, step) == (0, 3)
        assert all(numpy.array_equal(one, other) for one, other in zip(first, again))


def test_messages_in_pieces_are_what_was_sent():
    assert run(jobs.in_pieces, 3) == [[True] * 6] * 3


@YOUNG
@pytest.mark.parametrize("world_size", [2, 4])
def test_values_in_pieces_are_averaged_in_order_of_rank_or_all_ranks_hear_why_not(world_size):
    for found, refused, messages, after in run(jobs.averaged_in_pieces, world_size):
        assert all(found) and after
        assert not any(refused)
        assert messages == [[rank] * 3 for rank in range(world_size)]


def test_an_announced_length_takes_no_memory_before_the_bytes_come():
    blamed, asked = run(jobs.announced, 2)[0]
    assert blamed == 1 and asked <= 1 << 26


def test_an_own_scheme_trains_like_the_native_one_of_the_same_arithmetic():
    mine = run(jobs.train, 2, own.Half(), {"bucketing": 100_000}, 5)
    native = run(jobs.train, 2, "half", {"bucketing": 100_000, "feedback": True}, 5)
    for one, other in zip(mine, native):
        assert one[0] == other[0] and numpy.array_equal(one[1], other[1])
        # A checksum of the mean of each of three buckets.
        assert one[2] == [sent + 3 * 28 for sent in other[2]]
    averaged = run(jobs.averaged, 2, own.Half(), {}, 3)
    assert numpy.array_equal(averaged[0][1], run(jobs.averaged, 2, "half", {"feedback": True}, 3)[0][1])


@pytest.mark.parametrize("how", ["raises", "str", "none", "view", "gigabytes"])
def test_backward_says_which_rank_has_a_scheme_that_fails(how):
    for words, seconds, step, failure in run(jobs.own_scheme_fails, 2, own.Failing(how)):
        assert words is not None and "rank 1 gave up at step 2: scheme `Failing`" in words, words
        assert seconds < 10 and step == 1 and failure is None
