"""Compressors and the list of schemes, on NumPy arrays alone."""

import copy
import pickle
import threading

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gradwire

CODECS = [scheme.name for scheme in gradwire.schemes() if scheme.one_message]
BUSY = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def laplace(length, seed=0):
    return numpy.random.default_rng(seed).laplace(size=length).astype(numpy.float32)


def test_the_list_has_every_scheme_with_the_words_of_its_definition():
    schemes = {scheme.name: scheme for scheme in gradwire.schemes()}
    assert len(schemes) == len(gradwire.schemes()) > 20
    assert not schemes["powersgd"].one_message and schemes["powersgd"].feedback == "sound"
    assert schemes["qsgd"].feedback == "unsound" and schemes["qsgd"].feedback_reason
    assert schemes["dense"].law == "exact" and schemes["dense"].settings == ()
    ratio = schemes["topk"].settings[0]
    assert (ratio.name, ratio.default) == ("ratio", 0.01)
    assert ratio.doc.startswith("Share of each bucket's elements that is sent")
    for scheme in schemes.values():
        assert scheme.line and all(one.doc and "](" not in one.doc for one in scheme.settings)
        defaults = {one.name: one.default for one in scheme.settings}
        gradwire.Exchange({"weight": (8,)}, scheme.name, **defaults)


@pytest.mark.parametrize("scheme", CODECS)
def test_what_is_encoded_can_be_decoded_elsewhere(scheme):
    gradient = laplace(3000)
    writer = gradwire.Compressor(scheme, seed=7)
    reader = gradwire.Compressor(scheme, seed=7, rank=1)
    message = writer.encode(gradient, 1)
    read = reader.decode(message, 3000)
    assert read.dtype == numpy.float32 and read.shape == (3000,)
    assert numpy.array_equal(read, writer.decode(message, 3000))
    assert len(message) <= 24 + 4 * 3000
    law = {one.name: one.law for one in gradwire.schemes()}[scheme]
    if law == "exact":
        assert numpy.array_equal(read, gradient)
    if law == "contraction":
        assert numpy.linalg.norm(read - gradient) < numpy.linalg.norm(gradient)
    assert all(isinstance(value, float) for value in writer.gauges.values())


@pytest.mark.parametrize("scheme", CODECS)
def test_error_feedback_keeps_what_was_not_sent(scheme):
    compressor = gradwire.Compressor(scheme)
    # The residual of `demo` is its momentum, which fades.
    fades = 0.999 if scheme == "demo" else 1.0
    left = numpy.zeros(500)
    for step in range(1, 6):
        gradient = laplace(500, step)
        left = fades * left + gradient
        left -= compressor.decode(compressor.encode(gradient, step), 500)
    if "residual" in compressor.state():
        assert numpy.allclose(left, compressor.state()["residual"], atol=1e-4)


@pytest.mark.parametrize("scheme", CODECS)
def test_a_state_goes_on_as_if_never_stopped(scheme):
    def step(compressor, number):
        gradient = laplace(400, number)
        message = compressor.encode(gradient, number)
        compressor.learn([message], compressor.decode(message, 400), number)
        return message

    whole = gradwire.Compressor(scheme, seed=3)
    for number in range(1, 4):
        step(whole, number)
    again = gradwire.Compressor(scheme, seed=3)
    again.load_state(whole.state())
    assert again.length == 400
    assert [step(whole, n) for n in range(4, 7)] == [step(again, n) for n in range(4, 7)]
    fresh = gradwire.Compressor(scheme)
    fresh.load_state(gradwire.Compressor(scheme).state())
    assert fresh.length is None


def test_known_bytes():
    """A message is a frame of 24 bytes and what the scheme's file says of it."""
    message = gradwire.Compressor("topk", ratio=0.4).encode(
        numpy.array([0.1, -3.0, 0.0, 2.0, -0.2], dtype=numpy.float32), 1
    )
    assert message[:4] == b"GW\x02\x01"
    values = numpy.array([-3.0, 2.0], dtype="<f4").tobytes()
    assert message[24:] == b"\x02" + values + b"\x00\x01\x03"


def test_arrays_are_read_whatever_their_shape():
    matrix = laplace(600).reshape(20, 30)
    flat = gradwire.Compressor("qsgd").encode(matrix.reshape(-1), 1)
    assert gradwire.Compressor("qsgd").encode(matrix, 1) == flat
    read_only = matrix.copy()
    read_only.flags.writeable = False
    assert gradwire.Compressor("qsgd").encode(read_only, 1) == flat


@pytest.mark.parametrize(
    "array, words",
    [
        (laplace(8).astype(numpy.float64), "float64"),
        (numpy.zeros(8, dtype=numpy.int32), "int32"),
        (laplace(16)[::2], "ascontiguousarray"),
        (numpy.asfortranarray(laplace(16).reshape(4, 4)), "ascontiguousarray"),
        ([1.0, 2.0], "`list`"),
        (None, "`NoneType`"),
        (numpy.array([0, numpy.nan], dtype=numpy.float32), "element 1 of the array is NaN"),
        (numpy.array([numpy.inf, 0], dtype=numpy.float32), "element 0 of the array is inf"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_and_change_nothing(array, words):
    compressor = gradwire.Compressor("topk")
    compressor.encode(laplace(max(2, numpy.size(array))), 1)
    before = compressor.state()["residual"]
    with pytest.raises(gradwire.InputError, match=words):
        compressor.encode(array, 2)
    assert before.any() and numpy.array_equal(compressor.state()["residual"], before)


def test_an_empty_array_is_a_message_too():
    for scheme in CODECS:
        compressor = gradwire.Compressor(scheme)
        message = compressor.encode(numpy.empty(0, dtype=numpy.float32), 1)
        assert compressor.decode(message, 0).shape == (0,), scheme


def test_other_lengths_and_steps_are_refused():
    compressor = gradwire.Compressor("topk")
    compressor.encode(laplace(10), 1)
    with pytest.raises(gradwire.InputError, match="is for 10 elements.*this has 11"):
        compressor.encode(laplace(11), 2)
    with pytest.raises(gradwire.InputError, match="steps count from 1"):
        compressor.encode(laplace(10), 0)
    with pytest.raises(OverflowError):
        compressor.encode(laplace(10), -1)
    with pytest.raises(gradwire.InputError, match="in parts"):
        gradwire.Compressor("topk").decode(b"", 2**40)


def test_a_refused_call_does_not_settle_the_length():
    compressor = gradwire.Compressor("topk")
    with pytest.raises(gradwire.MessageError):
        compressor.decode(b"junk", 10)
    with pytest.raises(gradwire.InputError):
        compressor.encode(numpy.array([1, numpy.nan], numpy.float32), 1)
    assert compressor.encode(laplace(20), 1)


def test_messages_that_are_not_for_this_compressor_are_refused():
    message = gradwire.Compressor("topk", ratio=0.1, seed=1).encode(laplace(100), 1)
    for other in [
        gradwire.Compressor("topk", ratio=0.2, seed=1),
        gradwire.Compressor("topk", ratio=0.1, seed=2),
        gradwire.Compressor("threshold"),
    ]:
        with pytest.raises(gradwire.MessageError, match="scheme, settings, seed and length"):
            other.decode(message, 100)
    with pytest.raises(gradwire.MessageError):
        gradwire.Compressor("topk", ratio=0.1, seed=1).decode(message, 101)
    with pytest.raises(TypeError):
        gradwire.Compressor("topk").decode("text", 100)


@pytest.mark.parametrize("scheme", ["topk", "qsgd", "casq", "sidco"])
def test_every_torn_or_changed_message_is_refused(scheme):
    compressor = gradwire.Compressor(scheme)
    message = compressor.encode(laplace(40), 1)
    for end in range(len(message)):
        with pytest.raises(gradwire.MessageError):
            compressor.decode(message[:end], 40)
    for at in range(len(message)):
        changed = bytearray(message)
        changed[at] ^= 0x10
        with pytest.raises(gradwire.MessageError):
            compressor.decode(bytes(changed), 40)
    with pytest.raises(gradwire.MessageError, match="follow the end"):
        compressor.decode(message + b"\0", 40)


@pytest.mark.parametrize(
    "scheme, arguments, words",
    [
        ("top-k", {}, "unknown variant.*schemes()"),
        ("topk", {"rate": 0.1}, "unknown field `rate`"),
        ("topk", {"ratio": 2.0}, "ratio = 2"),
        ("topk", {"ratio": float("nan")}, "topk"),
        ("topk", {"ratio": object()}, "topk"),
        ("qsgd", {"feedback": True}, "unsound with error feedback"),
        ("powersgd", {}, "several rounds"),
    ],
)
def test_settings_that_are_not_possible_are_refused(scheme, arguments, words):
    with pytest.raises(gradwire.SettingError, match=words):
        gradwire.Compressor(scheme, **arguments)


def test_unsound_feedback_can_be_forced():
    compressor = gradwire.Compressor("qsgd", feedback=True, force=True)
    compressor.encode(laplace(10), 1)
    assert compressor.state()["residual"].shape == (10,)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"residual": numpy.zeros(3, dtype=numpy.float32)}, "3 elements where 10"),
        ({"residual": numpy.zeros(10)}, "no one-dimensional array"),
        ({"residual": "text"}, "no one-dimensional array"),
        ({"residual": numpy.full(10, numpy.nan, dtype=numpy.float32)}, "holds NaN"),
        ({"length": numpy.array([2**40], dtype=numpy.uint64)}, "in parts"),
        ({1: numpy.zeros(3, dtype=numpy.float32)}, "no entry's name"),
    ],
)
def test_states_that_do_not_fit_are_refused_and_change_nothing(change, words):
    compressor = gradwire.Compressor("topk")
    compressor.encode(laplace(10), 1)
    before = compressor.state()
    with pytest.raises(gradwire.Error, match=words):
        compressor.load_state({**before, **change})
    after = compressor.state()
    assert before.keys() == after.keys()
    assert all(numpy.array_equal(before[name], after[name]) for name in before)
    lossy = gradwire.Compressor("topk", feedback=False)
    with pytest.raises(gradwire.StateError, match="would be lost"):
        lossy.load_state(before)


def test_errors_are_of_the_kinds_that_python_knows_and_can_be_pickled():
    assert issubclass(gradwire.SettingError, ValueError)
    assert issubclass(gradwire.PeerTimeoutError, TimeoutError)
    assert issubclass(gradwire.PeerLostError, ConnectionError)
    error = gradwire.NonFiniteError("words", 1, 2, "weight", 3)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(again) == "words"
        assert (again.rank, again.step, again.parameter, again.index) == (1, 2, "weight", 3)


def test_other_threads_run_while_a_compressor_works():
    """A thread that counts gets on while one long call holds no lock of Python's."""
    gradient = laplace(1 << 23)
    compressor = gradwire.Compressor("topk", ratio=0.01)
    compressor.encode(gradient, 1)
    done = threading.Event()
    counted = []

    def count():
        begun = counter = 0
        while not done.is_set():
            counter += 1
            begun += 1
            if begun == 1000:
                counted.append(counter)
                begun = 0

    thread = threading.Thread(target=count)
    thread.start()
    before = len(counted)
    compressor.encode(gradient, 2)
    during = len(counted) - before
    done.set()
    thread.join()
    assert during > 3, during


@BUSY
@given(
    scheme=st.sampled_from(CODECS),
    gradient=arrays.arrays(
        numpy.float32,
        st.integers(0, 200),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    step=st.integers(1, 2**63),
)
def test_any_finite_array_comes_back_or_is_refused_in_words(scheme, gradient, step):
    compressor = gradwire.Compressor(scheme)
    try:
        message = compressor.encode(gradient, step)
        read = compressor.decode(message, len(gradient))
    except gradwire.Error as error:
        assert str(error)
        return
    assert numpy.isfinite(read).all() and read.shape == gradient.shape


@BUSY
@given(
    scheme=st.sampled_from(CODECS),
    array=st.one_of(
        arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_side=0, max_dims=3)),
        st.integers(),
        st.text(),
        st.lists(st.floats()),
    ),
    step=st.integers(-(2**70), 2**70),
)
def test_anything_at_all_is_encoded_or_refused(scheme, array, step):
    compressor = gradwire.Compressor(scheme)
    try:
        assert isinstance(compressor.encode(array, step), bytes)
    except (gradwire.Error, TypeError, OverflowError) as error:
        assert str(error)


@BUSY
@given(scheme=st.sampled_from(CODECS), message=st.binary(max_size=300), length=st.integers(0, 500))
@example("topk", b"GW", 3)
def test_any_bytes_are_refused(scheme, message, length):
    with pytest.raises(gradwire.MessageError):
        gradwire.Compressor(scheme).decode(message, length)


@BUSY
@given(
    scheme=st.sampled_from(CODECS),
    payload=st.binary(max_size=200),
    length=st.integers(0, 100),
    data=st.data(),
)
def test_hostile_payloads_with_a_right_checksum_give_numbers_or_an_error(
    scheme, payload, length, data
):
    """What a faulty peer could send: a true header, and any payload behind it."""
    import zlib

    compressor = gradwire.Compressor(scheme)
    header = bytearray(compressor.encode(numpy.zeros(length, dtype=numpy.float32), 1)[:20])
    header[3] = data.draw(st.sampled_from([1, 2]))
    header[16:20] = len(payload).to_bytes(4, "little")
    checksum = zlib.crc32(bytes(header) + payload)
    try:
        read = compressor.decode(bytes(header) + checksum.to_bytes(4, "little") + payload, length)
    except gradwire.MessageError as error:
        assert "checksum" not in str(error)
        return
    assert read.shape == (length,) and numpy.isfinite(read).all()


@BUSY
@given(
    arguments=st.dictionaries(
        st.sampled_from(["ratio", "levels", "bits", "feedback", "values", "norm", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        ),
        max_size=3,
    ),
    scheme=st.sampled_from(CODECS),
)
def test_any_settings_make_a_compressor_or_are_refused(scheme, arguments):
    try:
        compressor = gradwire.Compressor(scheme, **arguments)
        message = compressor.encode(laplace(20), 1)
    except (gradwire.Error, OverflowError) as error:
        assert str(error)
        return
    assert compressor.decode(message, 20).shape == (20,)
