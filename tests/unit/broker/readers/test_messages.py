"""The messages on the pipes, line by line."""

from __future__ import annotations

import msgspec
import pytest

from broker.readers.messages import ReaderReport, ReaderSettings, report_of, settings_of, to_line


def test_lines_come_back_as_they_were() -> None:
    settings = ReaderSettings(
        directory="/d", host="::1", port=7, access_keys=("a:b",), pull_bytes_max=1, frame_size_bytes_max=2,
        output_bytes_max=3, connections_max=4, log_level="debug", log_json=True,
    )  # fmt: skip
    report = ReaderReport(requests=1, records=2, bytes=3, retries=4, refused={"unsettled": 5})
    assert settings_of(to_line(settings)) == settings
    assert report_of(to_line(report)) == report
    assert to_line(settings).count(b"\n") == 1


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b'{"directory":1}\n'])
def test_invalid_settings(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        settings_of(line)
