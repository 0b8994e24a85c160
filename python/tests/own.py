"""Schemes in Python, for tests."""

import numpy


class Half:
    """The arithmetic of the native scheme `half` with feedback: f16, rounded to nearest even."""

    law = "contraction"

    def encode(self, gradient, step):
        return numpy.clip(gradient, -65504, 65504).astype("<f2").tobytes()

    def decode(self, message, length):
        return numpy.frombuffer(message, "<f2").astype(numpy.float32)


class Largest:
    """A tenth of the elements, the largest: positions, then values."""

    law = "contraction"

    def encode(self, gradient, step):
        kept = max(1, len(gradient) // 10)
        places = numpy.sort(numpy.argpartition(abs(gradient), -kept)[-kept:])
        return places.astype("<u4").tobytes() + gradient[places].tobytes()

    def decode(self, message, length):
        kept = len(message) // 8
        values = numpy.zeros(length, numpy.float32)
        values[numpy.frombuffer(message, "<u4", kept)] = numpy.frombuffer(message[4 * kept :], "<f4")
        return values


class Smoothed(Largest):
    """The largest elements of the gradient less what was sent on average: messages depend on earlier
    ones, and the mean is put together again at the end."""

    feedback, law = False, "biased"

    def __init__(self):
        self.known = numpy.zeros(1, numpy.float32)
        self.total = numpy.zeros(1, numpy.float32)

    def encode(self, gradient, step):
        message = super().encode(gradient - self.known, step)
        self.known = self.known + self.decode(message, len(gradient))
        return message

    def combine(self, mean, step):
        self.total = self.total + mean
        return self.total

    def state(self):
        return {"known": self.known, "total": self.total}

    def load_state(self, state):
        self.known, self.total = state["known"], state["total"]


class Failing(Largest):
    """Goes wrong in one way, from the step `at` on; `where` is asked for the ranks that do."""

    def __init__(self, how, at=2, where=None):
        self.how, self.at, self.where = how, at, where

    def __deepcopy__(self, memo):
        return Failing(self.how, self.at, self.where)

    def encode(self, gradient, step):
        message = super().encode(gradient, step)
        if step < self.at or not (self.where is None or self.where()):
            return message
        if self.how == "raises":
            raise ValueError("no idea")
        return {
            "str": lambda: message.decode("latin-1"),
            "none": lambda: None,
            "view": lambda: memoryview(bytearray(message)),
            "gigabytes": lambda: bytes(1 << 31),
        }.get(self.how, lambda: message)()

    def decode(self, message, length):
        values = super().decode(message, length)
        if not (self.where is None or self.where()):
            return values
        if self.how == "elsewhere" and self.where is not None:
            values[0] += 1
        if self.how == "short":
            return values[:-1]
        if self.how == "nan":
            values[3] = numpy.nan
        if self.how == "double":
            return values.astype(float)
        return values


class Forgetful(Largest):
    """Decodes what it encoded last, whatever it is given."""

    def encode(self, gradient, step):
        self.last = super().encode(gradient, step)
        return self.last

    def decode(self, message, length):
        return super().decode(self.last, length)


class Counting(Largest):
    """Sends other bytes the second time, and has no `state` that says so."""

    calls = 0

    def encode(self, gradient, step):
        self.calls += 1
        return super().encode(gradient / self.calls, step)


class OnlyEncodes:
    def encode(self, gradient, step):
        return b""


class HalfAState(Largest):
    def state(self):
        return {}


class Uncopied(Largest):
    def __deepcopy__(self, memo):
        raise TypeError("there is one of me")
