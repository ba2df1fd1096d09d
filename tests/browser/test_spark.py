"""The view of Spark's queries beside a real driver: batches advance, figures have units, a failure is told. Slow."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.plant import Plant
from tests.browser.spark_job import COUNTING, FAILING, REASON
from tests.browser.visitor import DESK, LIGHT, PHONE, Visitor
from tests.processes.rig import Server
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("pyspark", reason="needs PySpark (extra spark)")
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]
FIRST_BATCH_MS = 150_000
"""A listener reports after a batch, and Python workers have to start before the first one ends."""
BATCH = re.compile(r"batch (\d+)")


@pytest.fixture
def driver(server: Server, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Devices at work, and a Spark driver that reads from them."""
    command = [sys.executable, "-m", "tests.browser.spark_job", f"127.0.0.1:{server.ports['remoting']}", str(tmp_path)]
    with (
        Plant(server),
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n", (tmp_path / "log").read_text()[-2_000:]
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def test_a_running_job_is_watched_until_a_query_fails(
    chromium: Browser, server: Server, driver: subprocess.Popen[str], screenshots: Path
) -> None:
    """Rate, duration, lag and state of the one that counts; the reason of the one that fails, on a desk and a phone."""
    with Visitor(chromium, server, DESK, LIGHT) as visitor:
        visitor.sign_in()
        visitor.go("#/spark", "Spark")
        counting = visitor.page.get_by_role("region", name=COUNTING)
        failing = visitor.page.get_by_role("region", name=FAILING)
        for query in (counting, failing):
            query.get_by_text("running", exact=True).wait_for(timeout=FIRST_BATCH_MS)
        first = batch_of(counting.inner_text())
        counting.get_by_text(re.compile(rf"batch (?!{first}\b)\d+")).wait_for()
        assert batch_of(counting.inner_text()) > first
        for figure in (r"[\d.]+/s", r"[\d.]+ (ms|s)\b", r"up to date|\d messages", r"\d+ rows [\d.]+ [kKM]?i?B"):
            counting.get_by_text(re.compile(figure)).first.wait_for()
        counting.get_by_text("Batch duration").wait_for()
        visitor.page.screenshot(path=screenshots / "spark-job-light.png", full_page=True)
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()
        failing.get_by_text("failed", exact=True).wait_for()
        failing.get_by_text(f"RuntimeError: {REASON}", exact=True).wait_for()
        counting.get_by_text("running", exact=True).wait_for()
        assert not visitor.findings()
        visitor.page.screenshot(path=screenshots / "spark-job-failed-light.png", full_page=True)
    with Visitor(chromium, server, PHONE, LIGHT) as visitor:
        visitor.sign_in()
        visitor.go("#/spark", "Spark")
        visitor.sees(re.compile(REASON))
        visitor.page.screenshot(path=screenshots / "spark-job-phone.png", full_page=True)
        assert visitor.overhang() <= 0
        assert not visitor.findings()


def batch_of(text: str) -> int:
    """The number of the batch that the card of a query names."""
    found = BATCH.search(text)
    assert found is not None, text
    return int(found[1])
