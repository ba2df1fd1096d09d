"""Requests about the controllers where they cannot be changed: one alone, or with the library's engine."""

from __future__ import annotations

import pytest

from controller.consensus.engine import SingleEngine
from controller.control_plane.controller_requests import ControllerRequests
from remoting.protocol.errors import NotOffered
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.sim.raft.machines import Words


@pytest.mark.parametrize("name", ["list", "change"])
async def test_one_controller_alone_says_what_to_do(tmp_path, name):
    """Its members are those of its configuration."""
    requests = ControllerRequests(SingleEngine(tmp_path, Words()))
    fields = {"add": "n2@127.0.0.1:1@2"}
    with pytest.raises(NotOffered, match=r"stop all, change controller.peers on each and start them"):
        await getattr(requests, name)(None, Command(RequestCode.CHANGE_CONTROLLERS, fields=fields))
