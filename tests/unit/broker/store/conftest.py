"""Every test of the store runs on both twins of its hot loops, also in the processes it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.store import hot
from remoting.native.choice import PURE_VARIABLE


@pytest.fixture(params=["pure", "compiled"], autouse=True, scope="module")
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Puts one twin in place; the compiled one is skipped, with the reason, where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure":
            patch.setattr(hot, "core", hot.pure_core())
            patch.setenv(PURE_VARIABLE, "1")
        else:
            if hot.choice.name != "compiled":
                pytest.skip(f"no compiled twin: {hot.choice.reason}")
            patch.setattr(hot, "core", hot.compiled_core())
            patch.delenv(PURE_VARIABLE, raising=False)
        yield request.param
