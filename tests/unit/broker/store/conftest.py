"""Every test of the store runs on both twins of its hot loops, also in the processes it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remoting.native import core as native
from remoting.native.choice import PURE_VARIABLE


@pytest.fixture(params=["pure", "compiled"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Puts one twin in place; the compiled one is skipped, with the reason, where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(native, "core", native.pure_core())
            patch.setenv(PURE_VARIABLE, "1")
        else:
            if native.choice.name != "compiled":
                pytest.skip(f"no compiled twin: {native.choice.reason}")
            patch.setattr(native, "core", native.compiled_core())
            patch.delenv(PURE_VARIABLE, raising=False)
        yield request.param
