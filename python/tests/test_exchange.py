"""The exchange over a transport of one's own: ranks are threads here."""

import threading

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwire

SHAPES = {"conv.weight": (16, 4, 3, 3), "conv.bias": (16,), "linear.weight": (10, 64)}
LENGTH = 16 * 36 + 16 + 640
SCHEMES = [scheme.name for scheme in gradwire.schemes()]


class Group:
    """Threads that give one another messages."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size, timeout=20)
        self.posted = [None] * world_size

    def exchange(self, rank, given):
        self.posted[rank] = given
        self.barrier.wait()
        found = list(self.posted)
        self.barrier.wait()
        return found


class End:
    """One rank's end, which can only give the same message to all."""

    def __init__(self, group, rank):
        self.group, self.rank, self.world_size = group, rank, len(group.posted)

    def allgather(self, message):
        return [one.tobytes() for one in self.group.exchange(self.rank, message.copy())]


class Dividing(End):
    """One that can give each rank another part."""

    def allgather(self, message):
        return self.alltoall([message] * self.world_size)

    def alltoall(self, parts):
        parts = [part.copy() for part in parts]
        return [theirs[self.rank] for theirs in self.group.exchange(self.rank, parts)]


class Reusing(End):
    """One whose messages lie where those of its next call will."""

    room = None

    def allgather(self, message):
        assert not message.flags.writeable
        found = self.group.exchange(self.rank, message.copy())
        if self.room is None or self.room.size < sum(len(one) for one in found):
            self.room = numpy.empty(2 * sum(len(one) for one in found), numpy.uint8)
        ends = numpy.cumsum([len(one) for one in found])
        self.room[: ends[-1]] = numpy.concatenate(found)
        return [self.room[end - len(one) : end] for one, end in zip(found, ends)]


def gradient(rank, step):
    generator = numpy.random.default_rng(100 * rank + step)
    return generator.laplace(size=LENGTH).astype(numpy.float32)


def ranks(world_size, function, end=End):
    """What `function(transport)` returns or raises for each rank."""
    group = Group(world_size)
    found = [None] * world_size

    def run(rank):
        try:
            found[rank] = function(end(group, rank))
        except Exception as error:
            found[rank] = error
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def steps(scheme, count, **arguments):
    def run(end):
        exchange = gradwire.Exchange(SHAPES, scheme, end, seed=5, **arguments)
        found = []
        for step in range(1, count + 1):
            values = gradient(end.rank, step)
            traffic = exchange.allreduce(step, values)
            found.append((values, traffic.wire_bytes))
        return found

    return run


@pytest.mark.parametrize("end", [End, Dividing, Reusing])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_means_are_bit_identical_over_any_transport(scheme, end):
    found = ranks(3, steps(scheme, 3), end)
    for step in range(3):
        for rank in found:
            assert numpy.array_equal(rank[step][0], found[0][step][0])
    other = ranks(3, steps(scheme, 3), End)
    assert numpy.array_equal(other[0][2][0], found[0][2][0])


def test_the_dense_mean_is_the_sum_in_order_of_rank():
    found = ranks(3, steps("dense", 1))
    total = gradient(0, 1) + gradient(1, 1) + gradient(2, 1)
    assert numpy.array_equal(found[0][0][0], total * numpy.float32(1 / 3))
    assert found[0][0][1] == 24 + 4 * LENGTH


def test_groups_change_nothing_but_when_messages_travel():
    def grouped(end):
        exchange = gradwire.Exchange(SHAPES, "topk", end, seed=5, bucketing="parameter")
        assert exchange.buckets == [["conv.bias"], ["conv.weight"], ["linear.weight"]]
        assert exchange.layout[1] == ("conv.weight", 16, 16 + 576)
        exchange.set_groups([[2], [0, 1]])
        for step in range(1, 3):
            values = gradient(end.rank, step)
            exchange.begin(step)
            exchange.exchange_group(1, values)
            exchange.exchange_group(0, values)
            exchange.finish(values)
        return values

    whole = ranks(2, steps("topk", 2, bucketing="parameter"))
    found = ranks(2, grouped)
    assert numpy.array_equal(found[0], whole[0][1][0])


def test_a_group_by_itself_leaves_the_others_as_they_are():
    def alone(end):
        exchange = gradwire.Exchange(SHAPES, "topk", end, seed=5, ratio=0.1, bucketing="parameter")
        exchange.set_groups([[0, 1], [2]])
        values = gradient(end.rank, 1)
        first = exchange.allreduce_group(1, 1, values)
        kept = exchange.state()["residual"][:592].copy()
        second = exchange.allreduce_group(1, 0, values)
        exchange.rescale(0.25)
        return values, first.wire_bytes + second.wire_bytes, kept, exchange.state()["residual"]

    def whole(end):
        exchange = gradwire.Exchange(SHAPES, "topk", end, seed=5, ratio=0.1, bucketing="parameter")
        exchange.set_groups([[0, 1], [2]])
        values = gradient(end.rank, 1)
        return values, exchange.allreduce(1, values).wire_bytes, exchange.state()["residual"]

    for mine, (values, sent, residual) in zip(ranks(2, alone), ranks(2, whole)):
        assert numpy.array_equal(mine[0], values) and mine[1] == sent
        assert not mine[2].any() and numpy.abs(residual[:592]).max() > 0
        assert numpy.array_equal(mine[3], residual * numpy.float32(0.25))
    exchange = gradwire.Exchange(SHAPES, "topk")
    with pytest.raises(gradwire.InputError, match="there are 1 groups, and no 2"):
        exchange.allreduce_group(1, 2, gradient(0, 1))
    with pytest.raises(gradwire.InputError, match="factor = inf is not possible"):
        exchange.rescale(float("inf"))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    "scheme, settings",
    [
        ("dense", {}),
        ("half", {}),
        ("half", {"format": "bf16", "feedback": {"decay": 0.9}}),
        ("half", {"feedback": True}),
        ("nonzero", {}),
        ("nonzero", {"values": "bf16"}),
    ],
)
def test_schemes_that_leave_beside_the_backward_pass_have_the_same_bits_in_any_buckets(
    scheme, settings, world_size
):
    def run(bucketing):
        def inner(end):
            exchange = gradwire.Exchange(SHAPES, scheme, end, bucketing=bucketing, **settings)
            found = []
            for step in range(1, 4):
                values = gradient(end.rank, step)
                values[::3] = 0
                exchange.allreduce(step, values)
                found.append(values)
            return found

        return ranks(world_size, inner)

    whole = run("whole")
    for bucketing in ("parameter", 100, 3000):
        assert numpy.array_equal(run(bucketing), whole)


def test_one_rank_alone_and_its_state():
    exchange = gradwire.Exchange(SHAPES, "topk", ratio=0.1, bucketing=2048)
    values = gradient(0, 1)
    before = values.copy()
    traffic = exchange.allreduce(1, values)
    state = exchange.state()
    assert numpy.allclose(values + state["residual"], before)
    assert traffic.parameters == LENGTH and traffic.wire_bytes < traffic.dense_bytes
    assert traffic.gauges["residual_norm"] == pytest.approx(numpy.linalg.norm(state["residual"]))
    again = gradwire.Exchange(SHAPES, "topk", ratio=0.1, bucketing=2048)
    again.load_state(state)
    one, other = gradient(0, 2), gradient(0, 2)
    exchange.allreduce(2, one)
    again.allreduce(2, other)
    assert numpy.array_equal(one, other)
    with pytest.raises(gradwire.StateError):
        again.load_state({"residual": numpy.zeros(3, dtype=numpy.float32)})
    assert numpy.array_equal(again.state()["residual"], exchange.state()["residual"])


def test_a_gradient_that_is_not_finite_changes_nothing_on_any_rank():
    def run(end):
        exchange = gradwire.Exchange(SHAPES, "topk", end)
        exchange.allreduce(1, gradient(end.rank, 1))
        before = exchange.state()["residual"]
        values = gradient(end.rank, 2)
        if end.rank == 1:
            values[20] = numpy.inf
        given = values.copy()
        with pytest.raises(gradwire.NonFiniteError) as caught:
            exchange.allreduce(2, values)
        assert numpy.array_equal(values, given)
        assert numpy.array_equal(exchange.state()["residual"], before)
        exchange.allreduce(2, gradient(end.rank, 2))
        error = caught.value
        return error.rank, error.step, error.parameter, error.index

    assert ranks(2, run) == [(1, 2, "conv.weight", 4)] * 2


@pytest.mark.parametrize("refuses", ["gradient", "abort"])
def test_a_refusal_meets_the_alltoall_of_the_other_ranks(refuses):
    def run(end):
        exchange = gradwire.Exchange(SHAPES, "dense", end)
        values = gradient(end.rank, 1)
        if end.rank == 1:
            values[20] = numpy.nan
        with pytest.raises((gradwire.NonFiniteError, gradwire.AbortedError)) as caught:
            if end.rank == 1 and refuses == "abort":
                exchange.abort(1, "no more data")
            else:
                exchange.allreduce(1, values)
        exchange.allreduce(1, gradient(end.rank, 1))
        return type(caught.value), caught.value.rank

    kind = gradwire.NonFiniteError if refuses == "gradient" else gradwire.AbortedError
    assert ranks(3, run, Dividing) == [(kind, 1)] * 3


@pytest.mark.parametrize("end", [End, Dividing, Reusing])
def test_a_mean_that_overflows_leaves_the_residual_and_the_next_step_works(end):
    def run(end):
        exchange = gradwire.Exchange(SHAPES, "topk", end, ratio=0.1)
        exchange.allreduce(1, gradient(end.rank, 1))
        before = exchange.state()["residual"]
        values = gradient(end.rank, 2)
        values[20] = 3e38
        with pytest.raises(gradwire.NonFiniteError) as caught:
            exchange.allreduce(2, values)
        assert numpy.array_equal(exchange.state()["residual"], before)
        exchange.allreduce(2, gradient(end.rank, 2))
        return caught.value.rank, caught.value.step, caught.value.parameter

    assert ranks(2, run, end) == [(None, 2, "conv.weight")] * 2


def test_a_rank_that_aborts_is_heard():
    def run(end):
        exchange = gradwire.Exchange(SHAPES, "qsgd", end)
        with pytest.raises(gradwire.AbortedError, match="rank 1 gave up at step 1: no more data"):
            if end.rank == 1:
                exchange.abort(1, "no more data")
            else:
                exchange.allreduce(1, gradient(0, 1))
        exchange.allreduce(1, gradient(end.rank, 1))
        return "on"

    assert ranks(2, run) == ["on", "on"]


def test_ranks_that_are_in_different_steps_find_out():
    def run(end):
        exchange = gradwire.Exchange(SHAPES, "qsgd", end)
        with pytest.raises(gradwire.OutOfStepError):
            exchange.allreduce(1 + end.rank, gradient(end.rank, 1))
        with pytest.raises(gradwire.InputError, match="broken since an earlier error"):
            exchange.allreduce(1, gradient(end.rank, 1))
        return "told"

    assert ranks(2, run) == ["told", "told"]


class Faulty:
    """A transport of two ranks that answers what it is told to."""

    rank, world_size = 0, 2

    def __init__(self, answer):
        self.answer = answer

    def allgather(self, message):
        return self.answer(message)


def fail(error):
    def answer(_):
        raise error

    return answer


@pytest.mark.parametrize(
    "answer, kind, words",
    [
        (fail(gradwire.PeerLostError("gone", 1)), gradwire.PeerLostError, "rank 1 is gone"),
        (
            fail(gradwire.PeerTimeoutError("silent", 1, after=2.5)),
            gradwire.PeerTimeoutError,
            "rank 1 was silent for 2.5s",
        ),
        (fail(OSError("cable")), gradwire.TransportError, "OSError: cable"),
        (lambda m: [m.tobytes()], gradwire.TransportError, "1 messages for 2 ranks"),
        (lambda m: [m.tobytes(), 3], gradwire.TransportError, "this is a `int`"),
        (lambda m: None, gradwire.TransportError, "not iterable"),
        (lambda m: [m.tobytes(), b""], gradwire.MessageError, "message of rank 1"),
        (lambda m: [m.tobytes(), m.tobytes()[:-1]], gradwire.MessageError, "message of rank 1"),
        (lambda m: [m.tobytes(), m.tobytes()], gradwire.OutOfStepError, "rank"),
    ],
)
def test_a_transport_that_fails_is_blamed_and_nothing_is_applied(answer, kind, words):
    exchange = gradwire.Exchange(SHAPES, "topk", Faulty(answer))
    values = gradient(0, 1)
    with pytest.raises(kind, match=words) as caught:
        exchange.allreduce(1, values)
    assert numpy.array_equal(values, gradient(0, 1))
    if kind in (gradwire.PeerLostError, gradwire.TransportError):
        assert caught.value.__cause__ is not None
    assert caught.value.after == (2.5 if kind is gradwire.PeerTimeoutError else None)


def test_an_interruption_is_not_wrapped():
    exchange = gradwire.Exchange(SHAPES, "topk", Faulty(fail(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        exchange.allreduce(1, gradient(0, 1))


def test_a_call_from_the_transport_is_refused_and_does_not_hang():
    refused = []

    def answer(message):
        with pytest.raises(gradwire.InputError, match="in another call"):
            exchange.state()
        refused.append(True)
        raise OSError("enough")

    exchange = gradwire.Exchange(SHAPES, "topk", Faulty(answer))
    with pytest.raises(gradwire.TransportError):
        exchange.allreduce(1, gradient(0, 1))
    assert refused


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"bucketing": "layer"}, "layer"),
        ({"bucketing": 1}, "1 bytes hold no f32"),
        ({"start_step": 0}, "start_step = 0"),
        ({"momentum_correction": 1.5}, "momentum_correction = 1.5"),
        ({"clip_norm": -1.0}, "clip_norm = -1"),
        ({"ratio": 3.0}, "ratio = 3"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_are_not_possible_are_refused(arguments, words):
    with pytest.raises(gradwire.SettingError, match=words):
        gradwire.Exchange(SHAPES, "topk", **arguments)


def test_arrays_that_do_not_fit_are_refused_and_the_exchange_goes_on():
    exchange = gradwire.Exchange(SHAPES, "topk")
    read_only = gradient(0, 1)
    read_only.flags.writeable = False
    for array, words in [
        (numpy.zeros(3, dtype=numpy.float32), "3 elements, the layout"),
        (numpy.zeros(LENGTH), "float64"),
        (numpy.zeros((LENGTH, 2), dtype=numpy.float32)[:, 0], "ascontiguousarray"),
        (read_only, "read-only"),
    ]:
        with pytest.raises(gradwire.InputError, match=words):
            exchange.allreduce(1, array)
    with pytest.raises(gradwire.InputError, match="before the step has begun"):
        gradwire.Exchange(SHAPES, "topk").exchange_group(0, gradient(0, 1))
    with pytest.raises(gradwire.InputError, match="and no 7"):
        exchange.set_groups([[7]])
    exchange.allreduce(1, gradient(0, 1))


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    scheme=st.sampled_from(SCHEMES),
    cut=st.integers(0, 400),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=4),
)
def test_a_damaged_message_raises_and_applies_nothing(scheme, cut, changes):
    """A peer that sends this rank's message as its own, damaged."""

    def answer(message):
        theirs = bytearray(message.tobytes())
        theirs[4:6] = b"\x01\x00"
        for at, flip in changes:
            theirs[at % len(theirs)] ^= flip
        return [message.tobytes(), bytes(theirs[: len(theirs) - 1 - cut % len(theirs)])]

    exchange = gradwire.Exchange(SHAPES, scheme, Faulty(answer))
    values = gradient(0, 1)
    before = values.copy()
    with pytest.raises((gradwire.MessageError, gradwire.OutOfStepError)):
        exchange.allreduce(1, values)
    assert numpy.array_equal(values, before)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    shapes=st.dictionaries(
        st.text(max_size=5), st.lists(st.integers(0, 2**63), max_size=4), max_size=3
    )
)
def test_any_shapes_make_an_exchange_or_are_refused(shapes):
    elements = 0
    for shape in shapes.values():
        product = 1
        for size in shape:
            product *= size
        elements += product
    if 10**6 < elements < 2**40:
        return  # Possible, and too large for a test.
    try:
        exchange = gradwire.Exchange(shapes, "powersgd", bucketing="parameter")
    except gradwire.SettingError as error:
        assert str(error)
        return
    assert len(exchange.layout) == len(shapes)


@pytest.mark.parametrize(
    "scheme, settings, words",
    [
        ("topk", {"feedback": {"decay": 0}}, "feedback.decay = 0"),
        ("topk", {"feedback": {"fades": 0.5}}, "fades"),
        ("topk", {"feedback": "yes"}, "feedback|boolean"),
        ("qsgd", {"feedback": {"efsgdm": 0.1}}, "EF21 needs a contraction|unsound"),
        ("dense", {"feedback": {"decay": 0.9}}, "feedback"),
        ("topk", {"rules": [{"match": "nothing.*", "scheme": "dense"}]}, "matches no parameter"),
        ("topk", {"rules": [{"match": "conv.*", "scheme": "none"}]}, "none"),
        ("topk", {"rules": "conv.*"}, "rules|sequence"),
    ],
)
def test_forms_of_feedback_and_rules_that_are_not_possible_are_refused(scheme, settings, words):
    with pytest.raises(gradwire.SettingError, match=words):
        gradwire.Exchange(SHAPES, scheme, **settings)


def test_rules_give_parameters_a_scheme_of_their_own():
    rules = [{"match": "conv.bias", "scheme": "dense"}, {"match": "conv.*", "scheme": {"kind": "dense"}}]
    exchange = gradwire.Exchange(SHAPES, "topk", ratio=0.1, rules=rules)
    values = gradient(0, 1)
    given, traffic = values.copy(), exchange.allreduce(1, values)
    places = {name: slice(*place) for name, *place in exchange.layout}
    assert numpy.array_equal(values[places["conv.weight"]], given[places["conv.weight"]])
    assert numpy.count_nonzero(values[places["linear.weight"]]) == 64
    assert traffic.wire_bytes > 4 * 592



@pytest.mark.parametrize("scheme", ["dense", "qsgd", "topk"])
def test_any_scheme_may_share_a_momentum(scheme):
    exchange = gradwire.Exchange({"one": [4]}, scheme, feedback={"momentum": 0.5}, start_step=2)
    first, second = (numpy.array([4.0, 0.0, -8.0, 2.0], numpy.float32) for _ in range(2))
    exchange.allreduce(1, first)
    exchange.allreduce(2, second) if scheme == "dense" else None
    assert first.tolist() == [2.0, 0.0, -4.0, 1.0]
    assert scheme != "dense" or second.tolist() == [3.0, 0.0, -6.0, 1.5]


def test_what_is_left_of_a_residual_fades():
    exchange = gradwire.Exchange({"one": [4]}, "topk", ratio=0.25, feedback={"decay": 0.5})
    values = numpy.array([8, 4, 2, 1], numpy.float32)
    exchange.allreduce(1, values)
    exchange.allreduce(2, numpy.zeros(4, numpy.float32))
    assert exchange.state()["residual"].tolist() == [0, 0, 1, 0.5]
