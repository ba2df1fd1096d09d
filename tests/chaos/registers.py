"""Clients that write and read the controllers' data, and the histories of these operations for the register judge.

    address of group/1   a registered broker's address, agreed on by all controllers: written by 1003, read by 1006
    key of c1            an entry of one controller's key-value table (codes 100 and 101), which each keeps for itself

A value is a unique address on which nothing listens, so a read identifies the write that it found. A write answered
with anything but success, or not answered, may have taken effect.
Thread rule: a thread per client with its own histories, which are read after `stop`.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies import controller_body as body
from remoting.protocol.bodies.controller_body import decode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.chaos.linearizable import UNKNOWN, Operation

CLUSTER = "DefaultCluster"
GROUPS = ("register-0", "register-1")
BROKER_ID = 1
NAMESPACE, KEY = "chaos", "register"
ANSWER_MS = 1_500
PAUSE_S = 0.1
History = list[Operation]


class Found(msgspec.Struct, frozen=True):
    """The answer to a read."""

    value: str | None


class Register:
    """How one register is written and read over a connection."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        """``addresses``: of the controllers that may be asked for it."""
        self.name = name
        self.addresses = addresses

    def write(self, link: BlockingConnection, value: str) -> bool:
        """Whether the write was answered with success. Raises LightMQError."""
        raise NotImplementedError

    def read(self, link: BlockingConnection) -> Found | None:
        """The present value; None: no usable answer. Raises LightMQError."""
        raise NotImplementedError


class AddressRegister(Register):
    """A registered broker's address, in a group of its own that never has a master."""

    def write(self, link: BlockingConnection, value: str) -> bool:
        """1003; before the first one an id is taken (1013), which may be repeated."""
        taken = body.ApplyBrokerIdHeader(CLUSTER, self.name, BROKER_ID, "chaos")
        header = body.RegisterReplicaHeader(CLUSTER, self.name, BROKER_ID, value)
        answer = link.request(Command(RequestCode.CONTROLLER_REGISTER_BROKER, fields=body.to_fields(header)))
        if answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            link.request(Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields=body.to_fields(taken)))
        return answer.code == 0

    def read(self, link: BlockingConnection) -> Found | None:
        """1006."""
        names = msgspec.json.encode([self.name])
        answer = link.request(Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=names))
        if answer.code != 0:
            return None
        group = decode_body(answer.body, body.SyncStateData).replicas_info_table.get(self.name)
        replicas = [*group.in_sync_replicas, *group.not_in_sync_replicas] if group is not None else []
        return Found(next((each.broker_address for each in replicas if each.broker_address), None))


class KeyRegister(Register):
    """A key-value entry of one controller."""

    def write(self, link: BlockingConnection, value: str) -> bool:
        """100."""
        fields = {"namespace": NAMESPACE, "key": KEY, "value": value}
        return link.request(Command(RequestCode.PUT_KV_CONFIG, fields=fields)).code == 0

    def read(self, link: BlockingConnection) -> Found | None:
        """101."""
        fields = {"namespace": NAMESPACE, "key": KEY}
        answer = link.request(Command(RequestCode.GET_KV_CONFIG, fields=fields))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return Found(None)
        return Found(answer.fields["value"]) if answer.code == 0 else None


_numbers = itertools.count(1)


def next_value() -> str:
    """An address on this machine that no other write has."""
    number = next(_numbers)
    assert number < 1 << 24
    return f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:1"


class RegisterClient:
    """Writes and reads registers in turn, each operation on whichever connection it has."""

    def __init__(self, name: str, registers: list[Register], now: Callable[[], float], seed: int) -> None:
        self.name = name
        self.histories: dict[str, History] = {register.name: [] for register in registers}
        self.answered = 0
        self._registers = registers
        self._now = now
        self._chance = random.Random(seed)
        self._links: dict[str, BlockingConnection] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Writes and reads registers in turn, each operation on any of its connections."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S * self._chance.uniform(0.2, 1.8)):
            self._operate(self._chance.choice(self._registers))
        for link in self._links.values():
            link.close()

    def _operate(self, register: Register) -> None:
        link = self._link(register)
        if link is None:
            return
        is_write = self._chance.random() < 0.5
        value, called, answered = next_value() if is_write else None, self._now(), UNKNOWN
        try:
            if value is not None:
                is_done = register.write(link, value)
            else:
                found = register.read(link)
                is_done, value = found is not None, found.value if found is not None else None
            if is_done:
                answered = self._now()
                self.answered += 1
        except LightMQError:
            is_done = False
        if not is_done:  # it does not lead, or it is cut off: another one may know more
            self._links.pop(register.name).close()
        self.histories[register.name].append(Operation(self.name, called, answered, value, is_write))

    def _link(self, register: Register) -> BlockingConnection | None:
        link = self._links.get(register.name)
        if link is None:
            try:
                link = BlockingConnection.dial(self._chance.choice(register.addresses), ANSWER_MS)
            except LightMQError:
                return None
            self._links[register.name] = link
        return link


def clients(
    controllers: Mapping[str, str], now: Callable[[], float], seed: int, count: int = 4
) -> list[RegisterClient]:
    """Clients of every register; ``controllers``: name -> address."""
    registers: list[Register] = [AddressRegister(name, list(controllers.values())) for name in GROUPS]
    registers += [KeyRegister(key_of(name), [address]) for name, address in controllers.items()]
    return [RegisterClient(f"r{number}", registers, now, seed * 100 + number) for number in range(count)]


def histories(found: list[RegisterClient], wipes: Sequence[tuple[str, float]] = ()) -> dict[str, History]:
    """Register -> all its operations; a controller's key is a new one after each of its wipes."""
    joined: dict[str, History] = {}
    for client in found:
        for name, history in client.histories.items():
            times = [at for controller, at in wipes if name == key_of(controller)]
            for each in history:
                lives = sum(at < each.called for at in times)
                joined.setdefault(f"{name}, wiped {lives} times" if lives else name, []).append(each)
    return joined


def key_of(controller: str) -> str:
    """The name of the register that this controller keeps for itself."""
    return f"key of {controller}"
