"""Every judge finds what it is for: a judge that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from tests.chaos import judges
from tests.chaos.ledger import Ledger, parse, payload
from tests.chaos.linearizable import UNKNOWN, Operation


def ledger(count: int, acknowledged: range | None = None) -> Ledger:
    """A source with this many messages, of which these (or all) are acknowledged."""
    made = Ledger("s", "t")
    for number in range(count):
        assert made.send(float(number)) == number
    for number in acknowledged if acknowledged is not None else range(count):
        made.acknowledge(number, number + 0.5)
    return made


def bodies(*numbers: int) -> list[bytes]:
    return [payload("s", number) for number in numbers]


def test_a_payload_has_its_source_and_is_checked() -> None:
    """With one changed byte it is a message that was not sent."""
    data = payload("s", 7)
    assert len(data) > 60
    assert parse(data) == ("s", 7)
    assert parse(data[:-1] + b"x") is None
    assert parse(b"s:seven:") is None


def test_lost_unexpected_duplicate_and_recovered_messages_are_distinguished() -> None:
    """Only acknowledged messages count as lost."""
    sent = ledger(5, range(4))
    good = judges.total_queue("log", [sent], bodies(0, 1, 2, 2, 3, 4))
    assert good.passed
    assert good.counts == {"lost": 0, "unexpected": 0, "duplicates": 1, "recovered": 1}
    bad = judges.total_queue("log", [sent], [*bodies(0, 1, 3), payload("s", 9), payload("x", 0), b"rubbish"])
    assert (bad.counts["lost"], bad.counts["unexpected"]) == (1, 3)
    assert not bad.passed
    assert "s:2 acknowledged at 2.500 s" in " ".join(bad.violations)


def test_a_judge_that_saw_nothing_does_not_pass() -> None:
    """An empty run proves nothing."""
    assert not judges.total_queue("log", [], []).passed
    assert not judges.order("order", {}).passed


def test_disorder_is_found_and_repetition_is_allowed() -> None:
    """Only first readings count: a message that was sent again is read again."""
    assert judges.order("order", {"q": bodies(0, 1, 0, 1, 2)}).passed
    bad = judges.order("order", {"q": bodies(0, 2, 1), "other": bodies(5)})
    assert bad.counts["disorder"] == 1


def test_changed_vanished_and_missing_offsets_are_found() -> None:
    """What was shown must stay; what retention removed may disappear."""
    assert judges.same_bytes({"q": {0: 1, 1: 2}}, {"q": {0: 1, 1: 2, 2: 3}}, {}).passed
    bad = judges.same_bytes({"q": {0: 1, 1: 2, 5: 3}}, {"q": {0: 9, 1: 2, 3: 4}}, {})
    assert bad.counts == {"changed": 1, "vanished": 1, "gap": 1}
    assert judges.same_bytes({"q": {0: 1}}, {"q": {1: 2}}, {"q": 1}).passed
    assert judges.same_bytes({"q": {0: 1}}, {}, {}).counts["vanished"] == 1


def test_an_acknowledged_offset_has_its_message() -> None:
    """Another message there, or none, is found."""
    sent = ledger(2)
    sent.places = {0: (1, 10), 1: (1, 11)}
    zero, one = bodies(0, 1)
    assert judges.places([sent], {("t", 1): {10: zero, 11: one}}).passed
    assert judges.places([sent], {("t", 1): {10: one}}).counts["elsewhere"] == 2


def test_unequal_replicas_are_found() -> None:
    """Different bytes are; a log that ends sooner is not, with zeros or without further files."""
    long, short = bytes(70_000) + b"ab", bytes(70_000) + b"a\0"
    assert judges.equal_logs({"a": {"0": long}, "b": {"0": long}}).passed
    ended = judges.equal_logs({"a": {"0": long, "1": b"y"}, "b": {"0": short}, "c": {"0": long}})
    assert ended.passed
    assert ended.counts["shorter"] == 3
    bad = judges.equal_logs({"a": {"0": long}, "b": {"0": bytes(70_000) + b"b"}})
    assert bad.violations == ["unequal: 0 of a and b differ from byte 70000 on"]


def test_a_register_that_forgets_is_found() -> None:
    """One of several; the others are kept apart."""
    written = Operation("c", 0.0, 1.0, "a", is_write=True)
    good = [written, Operation("c", 2.0, 3.0, "a", is_write=False), Operation("c", 4.0, UNKNOWN, "b", is_write=True)]
    bad = [written, Operation("c", 2.0, 3.0, None, is_write=False)]
    assert judges.registers({"x": good}).counts == {"unknown": 1, "impossible": 0}
    found = judges.registers({"x": good, "y": bad})
    assert found.counts["impossible"] == 1
    assert "y: c read None" in found.violations[0]
    assert not judges.registers({}).passed


def test_only_the_first_violations_are_listed() -> None:
    """A lost disk does not fill the report."""
    verdict = judges.total_queue("log", [ledger(100)], [])
    assert verdict.counts["lost"] == 100
    assert len(verdict.violations) == judges.SHOWN_MAX


@pytest.mark.parametrize(("at", "back"), [(0.0, 0.5), (1.2, 2.0 + 0.5 - 1.2), (9.0, None)])
def test_the_time_without_writes(at: float, back: float | None) -> None:
    """From a moment to the first acknowledgement of what was sent after it."""
    found = ledger(4).back_after(at)
    assert found == (None if back is None else pytest.approx(back))


def test_the_first_acknowledgement_counts() -> None:
    """A repeated one changes nothing."""
    sent = ledger(1)
    sent.acknowledge(0, 99.0)
    assert (sent.acknowledged[0], sent.count) == (0.5, 1)
