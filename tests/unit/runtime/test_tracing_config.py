"""An address that is none is refused when it is read."""

from __future__ import annotations

import pytest

from runtime.tracing_config import TracingConfig


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://collector:4317", "http://", "https://u:p@collector"])
def test_no_address(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        TracingConfig(endpoint=endpoint)


def test_off_without_one() -> None:
    assert TracingConfig().endpoint == ""
    assert TracingConfig(endpoint="https://collector.example:4318/otlp").root_ratio == 0
