"""An eavesdropped request is worthless: each signed request is valid once, on its connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.transport.signature import Signer
from tests.processes.rig import Server

KEY = Signer("boss", "a-secret")


@pytest.fixture(scope="module", params=["false", "true"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, bool]]:
    """A server as RocketMQ's clients need it, and one that does not accept them."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "rules").write_text("user boss\nrole admin\n")
    settings = (
        f"broker.access_list={folder / 'rules'}", "broker.access_keys=boss:a-secret",
        f"broker.bound_signatures_only={request.param}",
    )  # fmt: skip
    made = Server(folder / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    try:
        yield made, request.param == "true"
    finally:
        made.kill_if_running()


class Tap:
    """An eavesdropper between a client and the server that keeps what the client sends."""

    def __init__(self, port: int) -> None:
        self.heard = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        threading.Thread(target=self._carry, args=(self._server, client, None), daemon=True).start()
        self._carry(client, self._server, self.heard)

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket, heard: bytearray | None) -> None:
        try:
            while data := source.recv(65_536):
                if heard is not None:
                    heard += data
                target.sendall(data)
        except OSError:
            return

    def requests(self) -> list[Command]:
        return FrameDecoder().feed(bytes(self.heard))

    def inject(self, command: Command) -> None:
        """Send something on the client's own connection to the server."""
        self._server.sendall(encode_frame(command))


def change() -> Command:
    fields = {"namespace": "n", "key": "k", "value": "v"}
    return Command(RequestCode.PUT_KV_CONFIG, fields=fields)


def exchanged(port: int, *frames: bytes) -> list[Command]:
    """Answers to raw frames on one new connection."""
    decoder, answers = FrameDecoder(), []
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        for frame in frames:
            raw.sendall(frame)
            got: list[Command] = []
            while not got:
                got = decoder.feed(raw.recv(65_536))
            answers += got
    return answers


def test_an_eavesdropped_request_is_refused(server: tuple[Server, bool]) -> None:
    """On another connection, on one with a challenge of its own, after it and again on the same one."""
    made, _ = server
    port = made.ports["remoting"]
    tap = Tap(port)
    with BlockingConnection.dial(tap.address, 10_000, signer=KEY) as connection:
        assert connection.request(change()).code == 0
        challenge, overheard = tap.requests()
        assert (challenge.code, overheard.code) == (RequestCode.SIGN_CHALLENGE, RequestCode.PUT_KV_CONFIG)
        for frames in (
            (encode_frame(overheard),),
            (encode_frame(challenge), encode_frame(overheard)),
        ):
            assert exchanged(port, *frames)[-1].code == ResponseCode.NO_PERMISSION
        overheard.opaque = 4_711
        connection._sent[4_711] = overheard.code
        tap.inject(overheard)
        reply = connection.receive(4_711)
        assert (reply.code, "already received" in (reply.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert connection.request(change()).code == 0
    assert exchanged(port, encode_frame(overheard))[0].code == ResponseCode.NO_PERMISSION


def test_an_eavesdropped_request_cannot_be_altered(server: tuple[Server, bool]) -> None:
    """Neither to another code with the same fields nor to one that may be repeated."""
    made, _ = server
    tap = Tap(made.ports["remoting"])
    with BlockingConnection.dial(tap.address, 10_000, signer=KEY) as connection:
        connection.request(change())
        other = tap.requests()[1]
        other.code = RequestCode.DELETE_KV_CONFIG
        other.opaque = 4_711
        other.fields["SignatureCount"] = "2"
        connection._sent[4_711] = other.code
        tap.inject(other)
        assert connection.receive(4_711).code == ResponseCode.NO_PERMISSION


def test_clients_of_rocketmq_are_accepted_unless_disabled(server: tuple[Server, bool]) -> None:
    made, bound_only = server
    command = change()
    command.opaque = 1
    KEY.sign(command)
    (answer,) = exchanged(made.ports["remoting"], encode_frame(command))
    assert (answer.code == 0) is not bound_only, answer.remark
    if bound_only:
        assert "bound_signatures_only" in (answer.remark or "")


def test_a_server_without_challenges_gets_the_old_signature() -> None:
    """As RocketMQ's brokers answer: code 3."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[Command] = []

    def serve() -> None:
        raw, _ = listener.accept()
        decoder = FrameDecoder()
        while len(heard) < 2 and (data := raw.recv(65_536)):
            for command in decoder.feed(data):
                heard.append(command)
                raw.sendall(encode_frame(command.reply(3 if command.code == RequestCode.SIGN_CHALLENGE else 0)))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with BlockingConnection.dial(f"127.0.0.1:{listener.getsockname()[1]}", 10_000, signer=KEY) as connection:
        assert connection.request(change()).code == 0
    thread.join(10)
    expected = change()
    KEY.sign(expected)
    assert heard[1].fields == expected.fields
