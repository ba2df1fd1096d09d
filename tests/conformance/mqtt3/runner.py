"""Plays one scenario against a target and reports the line and kind of a difference."""

from __future__ import annotations

from tests.conformance.mqtt3.script import ANY_ID, STEP_NAMES, Scenario, fields_of, packet_of
from tests.conformance.mqtt3.targets import ScriptClient, Target
from tests.conformance.wire import read_variable


class Run:
    """The state of one scenario while it is played."""

    def __init__(self, target: Target, unique: str) -> None:
        self.target = target
        self.unique = unique
        self.clients: dict[str, ScriptClient] = {}
        self.last_id: dict[str, int] = {}

    def play(self, scenario: Scenario) -> None:
        """All steps; an AssertionError names the line."""
        try:
            for number, words in scenario.steps:
                words = [word.replace("{u}", self.unique) for word in words]
                assert words[0] in STEP_NAMES, words
                try:
                    getattr(self, words[0])(*words[1:])
                except (AssertionError, TimeoutError) as error:
                    raise AssertionError(f"{scenario.where}:{number}: {' '.join(words)}: {error}") from error
        finally:
            for client in self.clients.values():
                client.drop()

    def client(self, name: str) -> ScriptClient:
        """The connection of this name, opened on first use."""
        if name not in self.clients:
            self.clients[name] = self.target.open()
        return self.clients[name]

    def connect(self, name: str, *words: str) -> None:
        """CONNECT, and the CONNACK that accepts it."""
        fields = [word for word in words if not word.startswith("present=")]
        present = fields_of(list(words)).get("present", ["0"])[0]
        if not any(word.startswith("id=") for word in fields):
            fields.append(f"id={self.unique}{name}")
        self.clients.pop(name, None)
        self.send(name, "connect", *fields)
        self.expect(name, "connack", f"present={present}", "code=0")

    def send(self, name: str, *words: str) -> None:
        """Any packet, in one piece."""
        self.client(name).send(self.bytes_of(words))

    def dribble(self, name: str, *words: str) -> None:
        """Any packet, byte by byte."""
        for byte in self.bytes_of(words):
            self.client(name).send(bytes((byte,)))

    @staticmethod
    def bytes_of(words: tuple[str, ...]) -> bytes:
        """The bytes of a packet given in words or in hex."""
        return bytes.fromhex("".join(words[1:])) if words[0] == "hex" else packet_of(list(words))

    def expect(self, name: str, *words: str) -> None:
        """The next packet is this one."""
        raw = self.client(name).next_packet()
        assert raw, "the connection was closed instead"
        expected = self.bytes_of(words)
        if f"id={ANY_ID}" in words:
            expected = self.with_id_of(name, expected, raw)
        assert raw == expected, f"received {raw.hex(' ')} instead of {expected.hex(' ')}"

    def with_id_of(self, name: str, expected: bytes, raw: bytes) -> bytes:
        """The PUBLISH expected, with the packet id received, which is remembered; it follows the topic [3.3.2]."""
        _, topic = read_variable(expected, 1)
        at = topic + 2 + int.from_bytes(expected[topic : topic + 2], "big")
        self.last_id[name] = int.from_bytes(raw[at : at + 2], "big")
        assert self.last_id[name], f"a packet id of 0 in {raw.hex(' ')}"
        return expected[:at] + raw[at : at + 2] + expected[at + 2 :]

    def ack(self, name: str) -> None:
        """PUBACK for the last PUBLISH whose id was taken."""
        self.send(name, "puback", f"id={self.last_id[name]}")

    def quiet(self, name: str) -> None:
        """Nothing arrived before the answer to a ping."""
        self.send(name, "pingreq")
        self.expect(name, "pingresp")

    def closed(self, name: str) -> None:
        """The server closed the connection and sent nothing more."""
        raw = self.client(name).next_packet()
        assert not raw, f"received {raw.hex(' ')} instead of the end"

    def drop(self, name: str) -> None:
        """The client disappears without DISCONNECT."""
        self.clients.pop(name).drop()

    def silence(self, seconds: str) -> None:
        """Nothing is sent for a while."""
        self.target.silence(float(seconds))
