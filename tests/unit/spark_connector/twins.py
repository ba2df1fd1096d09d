"""Puts one twin of the record loops in place for a test module; import `twin` into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_connector.columns import compiled_columns


@pytest.fixture(params=["pure", "compiled"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled twin is skipped, with the reason, where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(compiled_columns, "core", None)
        elif compiled_columns.core is None:
            pytest.skip(f"no compiled twin: {compiled_columns.choice.reason}")
        yield request.param
