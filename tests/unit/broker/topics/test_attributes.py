"""Attributes of a topic: what a request may say and what is kept of it."""

from __future__ import annotations

import pytest

from broker.topics.attributes import changed, is_batch, parse_changes
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


def test_changes_are_added_and_removed() -> None:
    kept = changed({}, "+queue.type=BatchCQ,+message.type=NORMAL", created=True)
    assert kept == {"queue.type": "BatchCQ", "message.type": "NORMAL"}
    assert is_batch(kept)
    assert changed({}, "+retention.ms=1,+retention.bytes=0", created=False) == {
        "retention.ms": "1", "retention.bytes": "0"
    }  # fmt: skip
    assert changed(kept, "-message.type", created=False) == {"queue.type": "BatchCQ"}
    assert changed(kept, "", created=False) == kept
    assert changed(kept, "+queue.type=BatchCQ", created=False) == kept, "saying the same again changes nothing"
    assert not is_batch({})
    assert not is_batch({"queue.type": "SimpleCQ"})


def test_spaces_and_empty_pieces_do_not_matter() -> None:
    assert parse_changes(" +message.type=FIFO , ,-queue.type") == {"message.type": "FIFO", "queue.type": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queue.type=BatchCQ", "neither"),
        ("+queue.type", "neither"),
        ("+queue.type=", "neither"),
        ("-queue.type=BatchCQ", "neither"),
        ("+=BatchCQ", "neither"),
        ("+", "neither"),
        ("+message.type=FIFO,-message.type", "twice"),
        ("+queue.type=RocksCQ", "SimpleCQ or BatchCQ"),
        ("+colour=red", "not supported"),
        ("+retention.ms=7d", "milliseconds"),
        ("+retention.bytes=-1", "bytes"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        changed({}, text, created=True)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("kept", "text"), [({"queue.type": "BatchCQ"}, "+queue.type=SimpleCQ"),
                                            ({"queue.type": "BatchCQ"}, "-queue.type"),
                                            ({}, "+queue.type=BatchCQ")])  # fmt: skip
def test_the_queue_type_is_fixed_at_creation(kept: dict[str, str], text: str) -> None:
    with pytest.raises(Refused, match="fixed"):
        changed(kept, text, created=False)
