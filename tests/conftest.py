"""Settings for all tests.

Servers that tests start reserve little disk, in this process and in children, and react to Ctrl-C. Property tests have
no time limit per example, because that depends on the load of the machine. Stores that tests dropped are collected
before their descriptors reach the number above which `select` fails in the whole process. Tests that must fail with a
planted bug get it from here.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SEGMENT_SIZE_BYTES = 32 * 1024 * 1024
"""A log file of the default size for each of some hundred short-lived servers would fill a disk."""
DESCRIPTORS_MAX = 400
"""`select`, which MQTT clients of tests wait with, takes numbers below 1,024."""
RESERVED = {
    "LIGHTMQ_BROKER__STORE__SEGMENT_SIZE_BYTES": SEGMENT_SIZE_BYTES,
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""And Spark's JVMs live too shortly for the optimising compiler: without it the same tests take a third less time."""

for _name, _value in RESERVED.items():
    os.environ.setdefault(_name, str(_value))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is for what a shell runs in the background, and children inherit that; many tests end one by this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("lightmq", settings.default, deadline=None, suppress_health_check=[
    HealthCheck.too_slow,
])  # fmt: skip
settings.load_profile("lightmq")


@pytest.fixture
def plant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that a test of `tests.support.plants.catches` runs with; None: it runs as it is."""
    if request.param is not None:
        request.param(monkeypatch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A planted bug that its test has caught is a test that passed."""
    report = yield
    if report.when == "call" and getattr(report, "wasxfail", None) is not None and item.get_closest_marker("planted"):
        del report.wasxfail
        report.outcome, report.longrepr = "passed", None
    return report


@pytest.fixture(scope="module", autouse=True)
def dropped_stores_are_closed() -> Iterator[None]:
    """A store that a test drops, as a kill does, closes its files when it is collected, which may be late."""
    yield
    listing = Path("/proc/self/fd")
    if listing.exists() and sum(1 for _ in listing.iterdir()) > DESCRIPTORS_MAX:
        gc.collect()
