from __future__ import annotations

import errno
import socket

import pytest

from lightmq.servers.preflight import PortTaken, check_free, explain


def test_a_free_port_passes_and_is_free_afterwards() -> None:
    check_free("127.0.0.1", 0, "--port")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_free("127.0.0.1", port, "--port")
    check_free("127.0.0.1", port, "--port")


def test_a_taken_port_names_port_option_and_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as raised:
            check_free("127.0.0.1", port, "--mqtt-port")
    assert f"port {port} is already in use" in str(raised.value)
    assert "--mqtt-port 0" in str(raised.value)


def test_other_reasons_are_told_too() -> None:
    assert "above 1023" in str(explain("h", 80, "--port", OSError(errno.EACCES, "Permission denied")))
    assert "No such device" in str(explain("h", 80, "--port", OSError(errno.ENODEV, "No such device")))
    with pytest.raises(PortTaken, match=r"203\.0\.113\.1"):
        check_free("203.0.113.1", 1234, "--port")
