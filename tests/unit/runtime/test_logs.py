from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from runtime import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logs.setup("warning")
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_an_event_and_its_pairs() -> None:
    stream = io.StringIO()
    logs.setup("info", stream=stream)
    logs.get_logger("proxy").warning("slow_reader", client="a b", lag=7, empty="")
    logs.get_logger("proxy").debug("not shown")
    line = stream.getvalue()
    assert line.endswith(' warning proxy slow_reader client="a b" lag=7 empty=""\n')
    assert line.startswith("20")


def test_secrets_never_reach_the_stream() -> None:
    stream = io.StringIO()
    logs.setup("info", stream=stream)
    logs.get_logger("auth").info("login", password="hunter2", nested={"api_key": "hunter2", "name": "x"})
    assert "hunter2" not in stream.getvalue()
    assert "password=***" in stream.getvalue()


def test_json_lines_can_be_read_back() -> None:
    stream = io.StringIO()
    logs.setup("debug", json=True, stream=stream)
    logs.get_logger("x").debug("event", number=1, thing=object)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["number"], line["component"], line["level"]) == ("event", 1, "x", "debug")


def test_a_line_break_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    logs.setup("info", stream=stream)
    logs.get_logger("x").info("event", name='a\n2026 error forged"')
    assert stream.getvalue().count("\n") == 1


def test_tracebacks_and_the_standard_library_come_out_too() -> None:
    stream = io.StringIO()
    logs.setup("info", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("task failed")
    logging.getLogger("noise").info("not shown")
    text = stream.getvalue()
    assert "error asyncio" in text
    assert "ValueError: broken" in text
    assert "noise" not in text


def test_what_is_in_use_is_known_to_whoever_starts_a_process() -> None:
    logs.setup("debug", json=True)
    assert logs.in_use() == ("debug", True)
