"""Topics that are published once leave neither queues nor log behind; a log keeps to its limit; too small a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.rig import Server
from tests.processes.topic_churn import MIB, Churn

pytestmark = [pytest.mark.processes]
TOPICS = 4_000
LIMIT_BYTES = 4 * MIB
SMALL = (
    f"--set=broker.store.record_size_bytes_max={MIB // 2}",
    f"--set=broker.limits.message_size_bytes_max={MIB // 4}",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_topics_that_are_published_once_end(tmp_path: Path) -> None:
    churn = Churn(tmp_path / "data", *SMALL, limit_bytes=LIMIT_BYTES, expiry_s=1, report=print)
    found = await churn.run(TOPICS)
    assert found["published"].queues >= TOPICS
    assert found["expired"].queues < 150
    assert found["restarted"].queues <= found["expired"].queues
    assert max(found["expired"].log_bytes, found["restarted"].log_bytes) <= LIMIT_BYTES


def test_too_small_a_limit_of_the_log_is_refused_in_words(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--set=broker.store.retention_size_bytes=8388608")
    with pytest.raises(AssertionError):
        server.start()
    assert "retention_size_bytes 8388608 is too small" in server.log.read_text()
    assert "set it to 31457280 or more" in server.log.read_text()
