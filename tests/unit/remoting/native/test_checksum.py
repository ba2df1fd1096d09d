"""Every implementation of the checksum against the vectors of RFC 3720 (B.4) and the package google-crc32c."""

from __future__ import annotations

import mmap
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
import pytest

from remoting.native import checksum
from remoting.native.reference import checksum as pure_checksum

VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex("01c0" + 28 * "0" + "1400000000000400000000140000001828" + 14 * "0" + "02" + 14 * "0"): 0xD9963A56,
    b"123456789": 0xE3069283,
    b"": 0,
}  # fmt: skip
Way = Callable[..., int]


@pytest.fixture(params=["chosen", "processor", "tables", "pure"])
def crc32c(request: pytest.FixtureRequest) -> Iterator[Way]:
    """Each of the implementations; the compiled ones where they were built."""
    if request.param == "chosen":
        yield checksum.crc32c
        return
    if request.param == "pure":
        yield pure_checksum.crc32c
        return
    compiled = pytest.importorskip("remoting.native.compiled.checksum", reason="not compiled", exc_type=ImportError)
    yield compiled.crc32c if request.param == "processor" else compiled.crc32c_tables


def test_the_standard_s_vectors(crc32c: Way) -> None:
    """Whole, and in two parts at every position."""
    for data, expected in VECTORS.items():
        assert crc32c(data) == expected
        assert {crc32c(data[at:], crc32c(data[:at])) for at in range(len(data))} <= {expected}


def test_every_length_place_and_start_value(crc32c: Way) -> None:
    """The rounds of three streams begin at 384 and at 6,144 bytes; the start need not be aligned."""
    chance = random.Random(7)
    data = chance.randbytes(40_000)
    lengths = [*range(800), *range(6_000, 6_600, 7), *(chance.randrange(30_000) for _ in range(200))]
    for length in lengths:
        at, start = chance.randrange(9_000), chance.choice((0, 0xFFFF_FFFF, chance.getrandbits(32)))
        piece = data[at : at + length]
        expected = google_crc32c.extend(start, piece)
        assert crc32c(memoryview(data)[at : at + length], start) == crc32c(piece, start) == expected, (at, length)


def test_every_kind_of_buffer(crc32c: Way) -> None:
    """Read-only or not, of any item size; strides and things without bytes are refused."""
    data = random.Random(8).randbytes(2 * pure_checksum.PIECE_BYTES + 32)
    expected = google_crc32c.value(data)
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    wide = np.frombuffer(data, np.uint64)
    kinds: list[Any] = [data, bytearray(data), memoryview(data), mapped, wide, wide.reshape(-1, 4), memoryview(wide)]
    assert {crc32c(kind) for kind in kinds} == {expected}
    mapped.close()
    with pytest.raises((TypeError, BufferError)):
        crc32c(5)


def test_other_threads_run_while_a_large_buffer_is_read() -> None:
    """The interpreter's lock is released meanwhile."""
    compiled = pytest.importorskip("remoting.native.compiled.checksum", reason="not compiled", exc_type=ImportError)
    data, turns, done = bytes(256 << 20), [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0.0001)

    other = threading.Thread(target=count)
    other.start()
    try:
        for _ in range(100):  # on a busy machine the other thread may not get the processor at once
            before = turns[0]
            compiled.crc32c(data)
            if turns[0] - before > 2:
                return
    finally:
        done.set()
        other.join()
    pytest.fail("nothing else ran meanwhile")


def test_the_implementation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `lightmq doctor`."""
    assert checksum.way() in {"by the processor's instruction", "by tables", "by google-crc32c"}
    monkeypatch.setattr(checksum, "choice", checksum.Choice(pure_checksum.crc32c, "pure", "not compiled"))
    assert checksum.way() == "by google-crc32c"
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    assert checksum.way() == checksum.BY_PLAIN_PYTHON
