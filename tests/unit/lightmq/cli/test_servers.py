from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli import servers
from lightmq.cli.application import run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What would have been started: the builder and its arguments."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(servers, "serve", lambda make, **how: calls.append((make, how)))
    return calls


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("command", ["up", "broker", "controller", "proxy"])
def test_every_server_is_built_from_its_flags(
    command: str, tmp_path: Path, served: list[tuple[Any, dict[str, Any]]]
) -> None:
    data = [] if command == "proxy" else ["--data", str(tmp_path / "d")]
    remoting = [] if command == "proxy" else ["--remoting-port", "0"]
    mqtt = ["--mqtt-port", "0"] if command in ("up", "proxy") else []
    assert run([command, *data, *remoting, *mqtt, "--admin-port", "0", "--json", "--log-level", "debug"]) == 0
    make, how = served[0]
    assert (how["json_output"], how["settings"].level) == (True, "debug")
    assert "is ready" in how["greeting"]({"mqtt": 1, "remoting": 2, "admin": 3}, {})
    assert make() is not None


@pytest.mark.parametrize(
    ("key", "instead"),
    [("broker.port", "up.remoting_port"), ("grpc.port", "up.grpc_port"), ("proxy.admin_port", "up.admin_port")],
)
def test_a_key_that_only_a_part_looks_at_is_refused_with_the_one_that_counts(
    key: str, instead: str, capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    assert run(["up", "--set", f"{key}=7"]) == 2
    assert f"--set {key} has no effect on `lightmq up`: set {instead}" in capsys.readouterr().err
    assert not served


def test_the_keys_that_count_instead_exist() -> None:
    from lightmq.configuration import Configuration
    from runtime.config import load

    origins = load(Configuration, file=None, environ={}, flags=()).origins
    assert set(servers.REPLACED) <= set(origins)
    assert set(servers.REPLACED.values()) <= set(origins)


@pytest.mark.parametrize("option", ["--mqtt-port", "--remoting-port", "--admin-port"])
def test_a_port_in_use_is_reported_before_anything_starts(
    option: str, taken_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    ports = {"--mqtt-port": 0, "--remoting-port": 0, "--admin-port": 0, option: taken_port}
    arguments = [text for name, port in ports.items() for text in (name, str(port))]
    assert run(["up", "--data", str(tmp_path / "d"), *arguments]) == 1
    said = capsys.readouterr().err
    assert f"port {taken_port} is already in use" in said
    assert f"{option} 0" in said
    assert not served
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("command", [["up"], ["proxy"]])
def test_an_unusable_password_file_is_reported_before_anything_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    (tmp_path / "users").write_text("")
    (tmp_path / "users").chmod(0o644)
    ports = ["--mqtt-port", "0", "--admin-port", "0"]
    if command == ["up"]:
        ports += ["--remoting-port", "0", "--data", str(tmp_path / "d")]
    assert run([*command, *ports, "--password-file", str(tmp_path / "users")]) == 1
    assert f"run: chmod 600 {tmp_path / 'users'}" in capsys.readouterr().err
    assert run([*command, *ports, "--password-file", str(tmp_path / "none")]) == 1
    assert f"password file {tmp_path / 'none'}: No such file" in capsys.readouterr().err
    assert not served
    assert not (tmp_path / "d").exists()


def test_a_directory_in_the_way_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    (tmp_path / "file").write_text("")
    ports = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    assert run(["up", "--data", str(tmp_path / "file"), *ports]) == 1
    assert "cannot be used" in capsys.readouterr().err
    assert not served


def test_a_bridge_needs_connections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], served: list[tuple[Any, dict[str, Any]]]
) -> None:
    file = tmp_path / "lightmq.toml"
    file.write_text('[bridge]\nname = "here"\n')
    assert run(["bridge", "--config", str(file), "--admin-port", "0"]) == 1
    assert "no bridge is configured" in capsys.readouterr().err
    rule = '[[bridge.connections.rules]]\nfilter = "#"\n'
    file.write_text(file.read_text() + '[[bridge.connections]]\nname = "a"\nhost = "b"\n' + rule)
    assert run(["bridge", "--config", str(file), "--admin-port", "0", "--broker", "c:1", "--json"]) == 0
    make, how = served[0]
    assert "bridge is ready: admin port 3" in how["greeting"]({"admin": 3}, {})
    assert make() is not None


def test_a_grpc_proxy_names_the_packages_that_are_missing(
    capsys: pytest.CaptureFixture[str], served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` too, if a port for gRPC is set."""
    arguments = ["grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--broker", "b:1"]
    assert run(arguments) == 0
    make, how = served[0]
    assert "grpc-proxy is ready: grpc port 5" in how["greeting"]({"grpc": 5}, {})
    assert make() is not None
    monkeypatch.setitem(sys.modules, "grpc_proxy.stubs", None)
    assert run(arguments) == 1
    assert "gRPC needs further packages" in capsys.readouterr().err
    ports = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    assert run(["up", "--grpc-port", "0", *ports]) == 1
    assert "install them with" in capsys.readouterr().err
    assert len(served) == 1
