"""Schemes that are objects of Python. Ranks are threads here."""

import threading

import numpy
import own
import pytest
from test_exchange import SHAPES, End, Faulty, gradient, ranks

import gradwire
import gradwire.contract


def steps(scheme, count, **arguments):
    """Means, wire bytes and the last state of some steps of each rank."""

    def run(end):
        exchange = gradwire.Exchange(SHAPES, scheme, end, **arguments)
        found = []
        for step in range(1, count + 1):
            values = gradient(end.rank, step)
            found.append((values, exchange.allreduce(step, values).wire_bytes))
        return found, exchange.state()

    return run


@pytest.mark.parametrize("bucketing", ["whole", "parameter"])
def test_the_same_arithmetic_is_the_native_scheme_byte_for_byte(bucketing):
    mine = ranks(3, steps(own.Half(), 4, bucketing=bucketing))
    native = ranks(3, steps("half", 4, bucketing=bucketing, feedback=True))
    for (means, state), (expected, expected_state) in zip(mine, native):
        for (mean, sent), (known, known_sent) in zip(means, expected):
            assert numpy.array_equal(mean, known)
            # A step also has a checksum of each bucket's mean, in a frame.
            assert sent == known_sent + 28 * (1 if bucketing == "whole" else 3)
        assert numpy.array_equal(state["residual"], expected_state["residual"])


def test_the_payload_of_a_message_is_what_encode_returned():
    class Listening(End):
        def allgather(self, message):
            heard.append(message.tobytes())
            return super().allgather(message)

    heard = []
    ranks(1, steps(own.Half(), 1), Listening)
    expected = own.Half().encode(gradient(0, 1), 1)
    assert heard[0][24:] == expected and len(heard[1]) == 28


@pytest.mark.parametrize("scheme", [own.Half(), own.Largest(), own.Smoothed()])
def test_the_laws_hold_of_good_schemes(scheme):
    gradwire.contract.check(scheme)


def test_the_laws_are_there_for_schemes_by_name_too():
    gradwire.contract.check("topk", ratio=0.2)
    with pytest.raises(gradwire.SettingError, match="ratio = 3"):
        gradwire.contract.check("topk", ratio=3.0)


@pytest.mark.parametrize(
    "scheme, words",
    [
        (own.Forgetful(), "another mean on rank 1 than on rank 0"),
        (own.Counting(), "a restored state goes on as if never stopped"),
        (own.Failing("raises", at=1), "finite"),
        (own.Failing("nan", at=1), "finite"),
    ],
)
def test_the_laws_find_what_is_wrong(scheme, words):
    with pytest.raises(gradwire.ViolationError, match=words) as caught:
        gradwire.contract.check(scheme)
    if isinstance(scheme, own.Failing):
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "scheme, arguments, words",
    [
        (own.OnlyEncodes(), {}, "`OnlyEncodes` has no `decode`"),
        (3, {}, "`int` has no `encode`"),
        (own.Half, {}, "is the class `Half`; give an object of it"),
        (own.HalfAState(), {}, "one of `state` and `load_state`"),
        (own.Uncopied(), {}, "there is one of me"),
        (own.Half(), {"ratio": 0.1}, "no setting `ratio`; give it to the object"),
        (type("Odd", (own.Half,), {"law": "sometimes"})(), {}, "its law is sometimes"),
        (type("Odd", (own.Half,), {"feedback": "yes"})(), {}, "its feedback is yes"),
        ("nonsense", {}, "nonsense"),
    ],
)
def test_objects_that_are_no_scheme_are_refused(scheme, arguments, words):
    with pytest.raises(gradwire.SettingError, match=words):
        gradwire.Exchange(SHAPES, scheme, **arguments)


@pytest.mark.parametrize(
    "how, words",
    [
        ("raises", "scheme `Failing`: ValueError: no idea"),
        ("str", "encode returned a `str`"),
        ("none", "encode returned a `NoneType`"),
        ("view", "encode returned a `memoryview`"),
        ("gigabytes", "encode returned 2147483648 bytes"),
    ],
)
def test_an_encode_that_fails_on_one_rank_gives_up_the_step_on_all(how, words):
    def run(end):
        here = threading.current_thread()
        failing = [end.rank == 1]
        scheme = own.Failing(how, where=lambda: failing[0] and threading.current_thread() is here)
        exchange = gradwire.Exchange(SHAPES, scheme, end)
        exchange.allreduce(1, gradient(end.rank, 1))
        before, values = exchange.state()["residual"], gradient(end.rank, 2)
        with pytest.raises(gradwire.AbortedError) as caught:
            exchange.allreduce(2, values)
        assert numpy.array_equal(values, gradient(end.rank, 2))
        assert numpy.array_equal(exchange.state()["residual"], before)
        failing[0] = False
        exchange.allreduce(2, values)
        cause = caught.value.__cause__
        return str(caught.value), caught.value.rank, cause is not None

    for rank, (said, blamed, caused) in enumerate(ranks(2, run)):
        assert said.startswith("rank 1 gave up at step 2") and words in said
        assert blamed == 1 and caused == (rank == 1)


@pytest.mark.parametrize(
    "how, words",
    [
        ("short", "decode returned 1231 elements, and the gradient has 1232"),
        ("nan", "decode returned NaN as element 3"),
        ("double", "decode returned what does not fit: the array's dtype is float64"),
    ],
)
def test_a_decode_that_fails_gives_up_the_step_on_all(how, words):
    def run(end):
        exchange = gradwire.Exchange(SHAPES, own.Failing(how), end)
        values = gradient(end.rank, 1)
        with pytest.raises(gradwire.AbortedError) as caught:
            exchange.allreduce(1, values)
        assert numpy.array_equal(values, gradient(end.rank, 1))
        return str(caught.value)

    for said in ranks(2, run):
        assert words in said and "the message of rank 0" in said, said


@pytest.mark.parametrize("how, words", [("elsewhere", "another mean on rank 2 than on rank 0"), ("short", "decode returned")])
@pytest.mark.parametrize("good_steps", [0, 2])
def test_a_decode_that_goes_wrong_on_one_rank_is_found_in_any_step(how, words, good_steps):
    def run(end):
        failing = [False]
        scheme = own.Failing(how, where=lambda: failing[0])
        exchange = gradwire.Exchange(SHAPES, scheme, end)
        for step in range(1, good_steps + 1):
            exchange.allreduce(step, gradient(end.rank, step))
        before, failing[0] = exchange.state()["residual"], end.rank == 2
        values = gradient(end.rank, 9)
        with pytest.raises(gradwire.AbortedError) as caught:
            exchange.allreduce(good_steps + 1, values)
        assert numpy.array_equal(values, gradient(end.rank, 9))
        assert numpy.array_equal(exchange.state()["residual"], before)
        failing[0] = False
        exchange.allreduce(good_steps + 1, values)
        return str(caught.value)

    for said in ranks(3, run):
        assert words in said, said


def test_one_object_serves_several_exchanges():
    shared = own.Smoothed()

    def run(end):
        exchanges = [gradwire.Exchange(SHAPES, shared, end) for _ in range(2)]
        found = []
        for step in range(1, 4):
            for number, exchange in enumerate(exchanges):
                values = gradient(end.rank, step + 10 * number)
                exchange.allreduce(step, values)
                found.append(values)
        return found

    both = ranks(2, run)
    alone = ranks(2, steps(own.Smoothed(), 3))
    for step in range(3):
        assert numpy.array_equal(both[0][2 * step], alone[0][0][step][0])
    assert shared.known.size == 1


@pytest.mark.parametrize("bucketing", ["whole", "parameter"])
def test_a_state_goes_on_and_a_failed_step_is_taken_back(bucketing):
    whole = gradwire.Exchange(SHAPES, own.Smoothed(), bucketing=bucketing)
    part = gradwire.Exchange(SHAPES, own.Smoothed(), bucketing=bucketing)
    for step in (1, 2):
        for exchange in (whole, part):
            exchange.allreduce(step, gradient(0, step))
    bad = gradient(0, 3)
    bad[7] = numpy.nan
    with pytest.raises(gradwire.NonFiniteError):
        part.allreduce(3, bad)
    saved = part.state()
    assert any(name.endswith("/known") for name in saved)
    again = gradwire.Exchange(SHAPES, own.Smoothed(), bucketing=bucketing)
    again.load_state(saved)
    for step in (3, 4):
        found = []
        for exchange in (whole, part, again):
            values = gradient(0, step)
            exchange.allreduce(step, values)
            found.append(values)
        assert all(numpy.array_equal(found[0], other) for other in found)


def test_a_transport_that_fails_leaves_the_state_of_the_scheme():
    refuse = [False]

    def answer(message):
        if refuse[0]:
            raise OSError("cable")
        return [message.tobytes()]

    transport = Faulty(answer)
    transport.world_size = 1
    exchange = gradwire.Exchange(SHAPES, own.Smoothed(), transport)
    exchange.allreduce(1, gradient(0, 1))
    refuse[0] = True
    with pytest.raises(gradwire.TransportError, match="cable"):
        exchange.allreduce(2, gradient(0, 2))


def test_an_interruption_of_a_scheme_is_not_wrapped():
    class Interrupted(own.Half):
        def encode(self, gradient, step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradwire.Exchange(SHAPES, Interrupted()).allreduce(1, gradient(0, 1))


def test_a_message_that_is_not_shorter_travels_as_plain_numbers():
    class Longer(own.Largest):
        def encode(self, gradient, step):
            return gradient.astype(float).tobytes()

        def decode(self, message, length):
            raise AssertionError("nobody sends this")

    def run(end):
        values = gradient(end.rank, 1)
        sent = gradwire.Exchange(SHAPES, Longer(), end).allreduce(1, values).wire_bytes
        return values, sent

    expected = (gradient(0, 1) + gradient(1, 1)) * numpy.float32(0.5)
    for mean, sent in ranks(2, run):
        assert numpy.array_equal(mean, expected)
        assert sent == 24 + 4 * len(mean) + 28


class Misspelt(own.Smoothed):
    """Cannot take up what it saved."""

    def load_state(self, state):
        raise KeyError("knwon")


def test_a_load_state_that_raises_is_an_error_and_no_panic():
    exchange = gradwire.Exchange(SHAPES, Misspelt())
    exchange.allreduce(1, gradient(0, 1))
    with pytest.raises(gradwire.StateError, match="knwon"):
        exchange.load_state(exchange.state())
    # What it has half loaded it does not go on with.
    with pytest.raises(gradwire.AbortedError, match="knwon"):
        exchange.allreduce(2, gradient(0, 2))


class Owing(own.Largest):
    """Adds what it did not send to the next gradient by itself."""

    feedback = False

    def __init__(self):
        self.owed = numpy.zeros(1, numpy.float32)

    def encode(self, gradient, step):
        message = super().encode(gradient + self.owed, step)
        self.owed = gradient + self.owed - self.decode(message, len(gradient))
        return message

    def state(self):
        return {"owed": self.owed}

    def load_state(self, state):
        self.owed = state["owed"]


@pytest.mark.parametrize("scheme", [own.Smoothed, Owing])
def test_what_a_scheme_reckons_with_is_sent_of_a_long_message_too(scheme):
    class Longer(scheme):
        def encode(self, gradient, step):
            return super().encode(gradient, step) + bytes(4 * len(gradient))

        def decode(self, message, length):
            return super().decode(message[: 8 * (length // 10)], length)

    for rank, expected in zip(ranks(2, steps(Longer(), 3)), ranks(2, steps(scheme(), 3))):
        for (mean, sent), (known, _) in zip(rank[0], expected[0]):
            assert numpy.array_equal(mean, known) and sent >= 4 * len(mean)


def test_a_compressor_can_be_copied():
    import copy

    first = gradwire.Compressor("topk", ratio=0.1)
    first.encode(gradient(0, 1), 1)
    second = copy.deepcopy(first)
    messages = [one.encode(gradient(0, 2), 2) for one in (first, second)]
    assert messages[0] == messages[1]
    assert first.encode(gradient(0, 3), 3) != second.encode(gradient(0, 4), 4)
