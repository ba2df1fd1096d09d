from __future__ import annotations

import pytest

from lightmq.cli.messages.mqtt_client import NO_PROPERTIES, PublishProperties, shown
from lightmq.cli.outcome import CommandFailed


def test_every_property_is_shown_again() -> None:
    said = PublishProperties(
        user_properties=["a=1", "a=2=3"], content_type="text/plain", response_topic="r", correlation="c", expiry=9
    )
    assert shown(said.properties(is_v5=True)) == {
        "user_properties": [("a", "1"), ("a", "2=3")],
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation": "c",
        "expiry_s": 9,
    }


def test_no_properties() -> None:
    assert NO_PROPERTIES.properties(is_v5=False) is None
    assert shown(None) == {}


def test_invalid_properties() -> None:
    with pytest.raises(CommandFailed, match="add -V 5"):
        PublishProperties(expiry=1).properties(is_v5=False)
    for pair in ("a", "=b"):
        with pytest.raises(CommandFailed, match="KEY=VALUE"):
            PublishProperties(user_properties=[pair]).properties(is_v5=True)
    with pytest.raises(CommandFailed, match="--expiry must be 0 to 4294967295"):
        PublishProperties(expiry=-1).properties(is_v5=True)
