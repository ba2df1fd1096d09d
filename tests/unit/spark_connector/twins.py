"""Puts one twin of the record loops in place for a test module; import `twin` into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.columns import layout


@pytest.fixture(params=["pure", "compiled"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled twin is skipped, with the reason, where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(layout, "core", None)
        elif layout.core is None:
            pytest.skip(f"no compiled twin: {layout.choice.reason}")
        yield request.param
