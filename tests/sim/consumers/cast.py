"""Which clients a scene has, and when everything that they are owed was given."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.consumers import lite, retained, shared, timers, transactions, wills
from tests.sim.consumers.basic import Client
from tests.sim.consumers.door import Scene
from tests.sim.consumers.pop import Gravedigger, PopConsumer, QueueProducer
from tests.sim.consumers.requests import name_of, pulled

ORDERS, STEPS, NOISE = "orders", "steps", "noise"
CAREFUL, CARELESS, IN_ORDER = "careful", "careless", "strict"
FEW_TRIES, MANY_TRIES = 2, 16


class QueueAuditor(Client):
    """Reads the only queue of a topic from its beginning, offset by offset."""

    pause_s = (0.1, 0.5)

    def __init__(self, scene: Scene, topic: str) -> None:
        self._topic, self._next = topic, 0
        self._names: dict[int, str] = {}
        super().__init__(scene)

    async def step(self) -> None:
        for message in await pulled(self.door, self._topic, 0, self._next):
            name = self._names[message.queue_offset] = name_of(message.body)
            self._next = message.queue_offset + 1
            self.state.seen(name, self.scene.now_ms(), f"{self._topic} {message.queue_offset}")

    def account(self) -> None:
        """Nothing was there twice."""
        self.state.in_topic(self._topic, self._names.values(), self.scene.now_ms())


class Cast:
    """The clients of one scene: of each kind those that `chosen` names, all by default."""

    KINDS = ("pop", "ordered", "timers", "transactions", "wills", "retained", "shared", "lite")

    def __init__(self, scene: Scene, chosen: tuple[str, ...] = KINDS, *, noise_bytes: int = 0) -> None:
        """`noise_bytes`: size of messages that nobody reads, 0 for none: what makes a log long."""
        self._scene = scene
        self._auditors: list[QueueAuditor | wills.QueueReader] = []
        parts: dict[str, Callable[[], None]] = {
            "pop": self._pop, "ordered": self._ordered, "timers": self._timers, "transactions": self._transactions,
            "wills": self._wills, "retained": self._retained, "shared": self._shared, "lite": self._lite,
        }  # fmt: skip
        for kind in chosen:
            parts[kind]()
        if noise_bytes:
            QueueProducer(scene, NOISE, noise_bytes)

    def account(self) -> None:
        """Nobody has found anything twice."""
        for each in self._auditors:
            each.account()

    def _pop(self) -> None:
        scene = self._scene
        QueueProducer(scene, ORDERS)
        scene.state.join(CAREFUL, [ORDERS])
        scene.state.join(CARELESS, [ORDERS])
        for number in (1, 2):
            PopConsumer(scene, CAREFUL, ORDERS, number)
        PopConsumer(scene, CARELESS, ORDERS, share=0.3)
        Gravedigger(scene, CAREFUL, MANY_TRIES)
        Gravedigger(scene, CARELESS, FEW_TRIES)

    def _ordered(self) -> None:
        scene = self._scene
        QueueProducer(scene, STEPS)
        scene.state.join(IN_ORDER, [STEPS])
        for number in (1, 2):
            PopConsumer(scene, IN_ORDER, STEPS, number, in_order=True)

    def _timers(self) -> None:
        for number in (1, 2):
            timers.TimerProducer(self._scene, number)
        self._auditors.append(QueueAuditor(self._scene, timers.TOPIC))

    def _transactions(self) -> None:
        transactions.TransactionProducer(self._scene)
        self._auditors.append(QueueAuditor(self._scene, transactions.TOPIC))

    def _wills(self) -> None:
        self._auditors.append(wills.QueueReader(self._scene, "will-reader", wills.TOPIC, wills.FILTER))
        wills.WillJudge(self._scene)
        wills.WillClient(self._scene, 1, self._auditors[-1])
        wills.WillClient(self._scene, 2, self._auditors[-1])

    def _retained(self) -> None:
        for number in range(2):
            retained.RetainedWriter(self._scene, number)
        retained.RetainedReader(self._scene, 2)

    def _shared(self) -> None:
        self._scene.state.join(shared.GROUP, [shared.TOPIC], is_exact=False)
        proxies = [shared.SharedProxy(self._scene, number) for number in (1, 2)]
        shared.Publisher(self._scene, proxies)

    def _lite(self) -> None:
        self._scene.state.join(lite.GROUP, [lite.PARENT])
        consumers = [lite.LiteConsumer(self._scene, number) for number in (1, 2)]
        lite.LiteProducer(self._scene, consumers)
