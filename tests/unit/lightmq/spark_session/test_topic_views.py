"""What register_topics refuses before it asks anybody; views in a real session are in tests/interop."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lightmq.spark import register_topics
from remoting.protocol.errors import LocalMisuse


@pytest.mark.parametrize("option", ["topic", "mqttFilter", "assign", "topicPattern"])
def test_the_pattern_alone_chooses(option: str) -> None:
    with pytest.raises(LocalMisuse, match=f"{option}.*`pattern` chooses"):
        register_topics(cast("Any", None), **{option: "t"})


def test_wrong_options_are_named() -> None:
    with pytest.raises(LocalMisuse, match="did you mean 'nameServer'"):
        register_topics(cast("Any", None), nameServr="h:1")
