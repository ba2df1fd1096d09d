"""What an acknowledgement means, as a sentence, in every mode and size of a group."""

from __future__ import annotations

import pytest

from broker.replication.leader import ALL, ASYNC, COUNT, MODES, Acknowledge
from broker.replication.promises import DurabilityRule, promise

DISK, MEMORY = "on disk at", "in memory, not yet flushed, at"

AND_OTHERS = ", and at every other broker in sync"
REFUSED = "messages are refused"
GO_ON = "may die and messages are still accepted"

TABLE = [
    # flush, mode, count or in_sync_min, brokers -> text, warning
    ("sync", ALL, 2, 3, f"{DISK} 2 of 3 brokers{AND_OTHERS}; one {GO_ON}", ""),
    ("sync", ALL, 2, 5, f"{DISK} 2 of 5 brokers{AND_OTHERS}; 3 {GO_ON}", ""),
    ("sync", ALL, 3, 5, f"{DISK} 3 of 5 brokers{AND_OTHERS}; 2 {GO_ON}", ""),
    ("async", ALL, 2, 3, f"{MEMORY} 2 of 3 brokers{AND_OTHERS}; one {GO_ON}", ""),
    ("sync", ALL, 2, None, f"{DISK} 2 brokers at least{AND_OTHERS}; with fewer than 2 in sync {REFUSED}", ""),
    ("sync", ALL, 2, 2, f"{DISK} 2 of 2 brokers{AND_OTHERS}; while one is away {REFUSED}",
     "a group of 2 with in_sync_min = 2 takes no messages while one broker is away: add a broker to keep writing"),
    ("sync", ALL, 1, 2, f"{DISK} 1 of 2 brokers{AND_OTHERS}; one {GO_ON}",
     "may be on one disk alone: three brokers with in_sync_min = 2 keep two copies"),
    ("sync", ALL, 1, 1, f"{DISK} 1 of 1 brokers{AND_OTHERS}", "the group has one broker"),
    ("sync", ALL, 2, 1, f"{DISK} 2 brokers at least{AND_OTHERS}",
     "messages are refused: in_sync_min is 2 and the group has one broker"),
    ("sync", ALL, 3, 2, f"{DISK} 3 brokers at least{AND_OTHERS}",
     "messages are refused: in_sync_min is 3 and the group has 2 brokers"),
    ("sync", COUNT, 2, 3, f"{DISK} 2 of 3 brokers", "may become master"),
    ("async", COUNT, 2, None, f"{MEMORY} 2 brokers at least", "may become master"),
    ("sync", COUNT, 3, 2, f"{DISK} 3 brokers at least", "messages are refused: in_sync_replicas is 3"),
    ("sync", ASYNC, 2, 3, "on the disk of the master alone", "lost with the master"),
    ("async", ASYNC, 2, 3, "in the memory of the master alone", "lost with the master"),
]  # fmt: skip


@pytest.mark.parametrize(("flush", "mode", "least", "brokers", "text", "warning"), TABLE)
def test_members_of_a_group(flush: str, mode: str, least: int, brokers: int | None, text: str, warning: str) -> None:
    rule = DurabilityRule(flush=flush, in_group=True, acknowledge=mode, count=least, in_sync_min=least)
    found = promise(rule, brokers)
    assert found.text == f"acknowledged = {text}"
    assert (warning in found.warning) if warning else found.warning == ""


@pytest.mark.parametrize(
    ("flush", "text"),
    [
        ("sync", "on one disk; a crash or a power cut loses nothing, the loss of the disk does"),
        ("async", "in the memory of one machine; a crash of the process loses nothing, a power cut may"),
    ],
)
def test_a_broker_alone(flush: str, text: str) -> None:
    found = promise(DurabilityRule(flush=flush, acknowledge=ASYNC), 1)
    assert (found.text, found.warning) == (f"acknowledged = {text}", "")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("brokers", [1, 2, 3, 4])
def test_the_sentence_agrees_with_the_rule(mode: str, least: int, brokers: int) -> None:
    """As many may die as the rule allows to be absent, and there is a warning for a group that accepts nothing."""
    found = promise(
        DurabilityRule(flush="sync", in_group=True, acknowledge=mode, count=least, in_sync_min=least), brokers
    )
    accepts = Acknowledge(mode=mode, count=least, in_sync_min=least).accepts
    assert ("messages are refused" in found.warning) is not accepts(brokers)
    if mode == ALL:
        spare = sum(accepts(there) for there in range(1, brokers))
        assert (f"{'one' if spare == 1 else spare} may die" in found.text) is (spare > 0)
