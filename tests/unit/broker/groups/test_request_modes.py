"""Modes of groups in the log."""

from __future__ import annotations

import pytest

from broker.groups.request_modes import POP, PULL, RequestMode, RequestModes
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


def test_a_mode_is_that_of_one_group_and_topic_and_outlives_a_restart(bench) -> None:
    modes = RequestModes(bench.store)
    modes.put("g", "t", RequestMode(POP, 3))
    modes.put("g", "u", RequestMode(PULL))
    modes.put("gt", "t", RequestMode(POP))
    modes = RequestModes(bench.reopen())
    assert modes.get("g", "t") == RequestMode(POP, 3)
    assert [modes.pops("g", "t"), modes.pops("g", "u"), modes.pops("g", "v")] == [True, False, False]
    modes.require_pull("g", "u")
    modes.require_pull("g", "v")
    with pytest.raises(Refused) as refused:
        modes.require_pull("g", "t")
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    bench.store.append_state(modes.forget("g"))
    assert (modes.get("g", "t"), modes.get("gt", "t")) == (None, RequestMode(POP))
