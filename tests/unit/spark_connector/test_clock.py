"""The clock is the machine's."""

from __future__ import annotations

import time

from spark_connector.worker import wall_ms


def test_milliseconds_since_1970() -> None:
    before = time.time()
    assert int(before * 1000) <= wall_ms() <= int(time.time() * 1000) + 1
