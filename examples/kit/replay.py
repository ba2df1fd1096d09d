"""Simulated devices over real MQTT: a table of messages, disturbed as in the field, published when each is due.

A message is a row: `due_s` (seconds of the story), `device`, `topic`, and the columns that make its JSON body.
Everything is computed in columns beforehand from one seed, so the same seed gives the same messages.

    Disturbances   late            single messages arrive long after they were measured
                   duplicates      a device sends the same message again
                   out_of_order    two neighbours of a device change places
                   offline         a device is cut off for a while, then sends what it has kept, in order

Invariants: messages of a device go through one connection, in the order of their `due_s`; a message counts as
acknowledged after a PUBACK that accepts it. Thread rule: one thread publishes, paho calls back on its own; counters are
guarded by one lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from kit.stage import Stage
from mqtt_bridge.paho_client import in_words
from runtime.clock import SystemClock

UNACKNOWLEDGED_MAX = 4000
"""Devices wait for acknowledgements beyond this many; the story then takes longer."""
WAIT_MAX_S = 30.0
"""But no longer than this: a server that is gone must not keep a story from its end."""
IN_FLIGHT_MAX = 500
CONNECT_TIMEOUT_S = 20.0
TICK_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbances:
    """Shares of messages (of devices for `offline`) that are disturbed, and by how many seconds of the story."""

    late: float = 0.0
    late_by_s: float = 600.0
    duplicates: float = 0.0
    out_of_order: float = 0.0
    offline: float = 0.0
    offline_for_s: float = 600.0

    @classmethod
    def chosen(cls, stage: Stage, *, late_by_s: float, offline_for_s: float) -> Self:
        """Take the shares that the command line chose, with the delays that suit the story."""
        return cls(**stage.options, late_by_s=late_by_s, offline_for_s=offline_for_s)

    def apply(self, messages: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
        """Return the messages in the order in which they are sent, marked by columns `is_late`, `is_duplicate`, ..."""
        sent = messages.copy()
        sent["is_late"] = rng.random(len(sent)) < self.late
        sent["is_out_of_order"] = rng.random(len(sent)) < self.out_of_order
        sent["is_offline"] = False
        sent["is_duplicate"] = False
        sent.loc[sent["is_late"], "due_s"] += rng.uniform(0.2, 1.0, int(sent["is_late"].sum())) * self.late_by_s
        self._cut_off(sent, rng)
        if self.out_of_order:
            later = sent.groupby("device", sort=False)["due_s"].shift(-1)
            moved = sent["is_out_of_order"] & later.notna() & ~sent["is_late"] & ~sent["is_offline"]
            sent["is_out_of_order"] = moved
            sent.loc[moved, "due_s"] = later[moved] + 1e-3
        again = sent[rng.random(len(sent)) < self.duplicates].copy()
        again["is_duplicate"] = True
        again["due_s"] += 1e-3
        return pd.concat([sent, again], ignore_index=True).sort_values("due_s", kind="stable", ignore_index=True)

    def _cut_off(self, sent: pd.DataFrame, rng: np.random.Generator) -> None:
        devices = sent["device"].unique()
        cut = devices[rng.random(len(devices)) < self.offline]
        last_s = float(sent["due_s"].max()) if len(sent) else 0.0
        begins = dict(zip(cut, rng.uniform(0.1, 0.7, len(cut)) * last_s, strict=True))
        begin_s = sent["device"].map(begins)
        gone = (sent["due_s"] >= begin_s) & (sent["due_s"] < begin_s + self.offline_for_s)
        sent["is_offline"] = gone
        kept_s = begin_s[gone] + self.offline_for_s
        # All at once when the connection is back, still in the order in which they were measured.
        sent.loc[gone, "due_s"] = kept_s + (sent.loc[gone, "due_s"] - begin_s[gone]) * 1e-6


class Gateways:
    """A few MQTT connections that publish for many devices, each device always through the same one."""

    def __init__(self, stage: Stage, name: str, connections: int = 4) -> None:
        self._stage = stage
        self._answered = threading.Condition(threading.Lock())
        """Guards the numbers below, and is notified with each of paho's answers."""
        self._connected = 0
        self.sent = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        """Messages and connections that the server refused, by reason."""
        self.lost_connections = 0
        self._clients = [self._client(f"{name}-gateway-{number}") for number in range(connections)]

    def _client(self, client_id: str) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.reconnect_delay_set(1, 2)
        client.on_connect, client.on_publish = self._on_connect, self._on_publish
        client.on_disconnect = self._on_disconnect
        return client

    def connect(self) -> None:
        """Return when all are connected; raises ConnectionError with the server's reason, OSError, TimeoutError."""
        for client in self._clients:
            client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=30)
            client.loop_start()
        with self._answered:
            ready = self._answered.wait_for(
                lambda: self._connected == len(self._clients) or self.refused.total(), CONNECT_TIMEOUT_S
            )
            if self.refused:
                raise ConnectionError(f"the server refused the devices: {next(iter(self.refused))}")
        if not ready:
            raise TimeoutError(f"{self._stage.mqtt_host}:{self._stage.mqtt_port} did not answer the devices")

    def publish(self, device: int, topic: str, body: bytes, *, retain: bool = False) -> None:
        """Send one message of a device (its number) with QoS 1; waits while too many are unanswered."""
        with self._answered:
            self._answered.wait_for(lambda: self.unanswered < UNACKNOWLEDGED_MAX, WAIT_MAX_S)
            self.sent += 1
        self._clients[device % len(self._clients)].publish(topic, body, qos=1, retain=retain)

    @property
    def unanswered(self) -> int:
        """Messages that were neither accepted nor refused."""
        return self.sent - self.acknowledged - self.refused.total()

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything is answered and disconnect; False when something is not or was refused."""
        with self._answered:
            done = self._answered.wait_for(lambda: self.unanswered <= 0, timeout_s)
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        return done and not self.refused

    def _on_connect(self, _client: Client, _userdata: object, _flags: Any, reason: Any, properties: Any) -> None:
        with self._answered:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self._connected += 1
            self._answered.notify_all()

    def _on_disconnect(self, _client: Client, _userdata: object, _flags: Any, reason: Any, _properties: Any) -> None:
        with self._answered:
            self.lost_connections += bool(reason.is_failure)

    def _on_publish(self, _client: Client, _userdata: object, _mid: int, reason: Any, properties: Any) -> None:
        with self._answered:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self.acknowledged += 1
            self._answered.notify_all()


def bodies(messages: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return one JSON object per row, of these columns."""
    return messages[list(columns)].to_json(orient="records", lines=True, double_precision=6).splitlines()


class Replay:
    """A `Simulation` of messages known beforehand: publishes each row when the story has come to its `due_s`."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        messages: pd.DataFrame,
        columns: Sequence[str] = (),
        *,
        connections: int = 4,
        figures: Callable[[float], Mapping[str, str]] | None = None,
    ) -> None:
        """`messages` in sending order; `columns` make the body, or a column `body` is it; `retain` may be one more.

        `figures` makes lines of the live view from the second of the story that is reached.
        """
        self.messages = messages
        self._stage = stage
        self._gateways = Gateways(stage, name, connections)
        self._figures = figures
        self._due_s = messages["due_s"].to_numpy()
        self._device = pd.factorize(messages["device"])[0]
        self._topics = messages["topic"].tolist()
        self._bodies = bodies(messages, columns) if columns else messages["body"].tolist()
        self._retain = messages["retain"].tolist() if "retain" in messages else [False] * len(messages)
        self._clock = SystemClock()
        self._begun_ns = 0
        self._stopped, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._publish_all, name="devices", daemon=True)

    @property
    def sent(self) -> int:
        """Messages handed to MQTT."""
        return self._gateways.sent

    @property
    def acknowledged(self) -> int:
        """Messages accepted by the server."""
        return self._gateways.acknowledged

    def start(self) -> None:
        """Connect and begin to publish."""
        self._gateways.connect()
        self._begun_ns = self._clock.monotonic_ns()
        self._thread.start()

    @property
    def story_s(self) -> float:
        """How far the story is, in its own seconds."""
        if not self._begun_ns:
            return 0.0
        told_s = (self._clock.monotonic_ns() - self._begun_ns) / 1e9 * self._stage.speed
        return min(told_s, float(self._due_s[-1]) + TICK_S)

    def _publish_all(self) -> None:
        done = 0
        while done < len(self._due_s) and not self._stopped.wait(TICK_S):
            due = int(np.searchsorted(self._due_s, self.story_s, side="right"))
            for row in range(done, due):
                self._gateways.publish(
                    int(self._device[row]), self._topics[row], self._bodies[row].encode(), retain=self._retain[row]
                )
            done = max(done, due)
        self._finished.set()

    def stop(self) -> None:
        """Publish nothing more; `published` then has what was sent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def published(self) -> pd.DataFrame:
        """The messages that were sent: all of them unless the run was interrupted."""
        return self.messages.iloc[: self.sent]

    def finished(self) -> bool:
        """Whether every message was sent."""
        return self._finished.is_set()

    def settle(self, timeout_s: float) -> bool:
        """Wait for the acknowledgements and disconnect."""
        return self._gateways.settle(timeout_s)

    def figures(self) -> Mapping[str, str]:
        """What the example shows of its story."""
        return self._figures(self.story_s) if self._figures else {}


class Inbox:
    """One subscriber with a persistent session: calls back with topic and body of each message, on paho's thread."""

    def __init__(
        self, stage: Stage, client_id: str, topic_filter: str, receive: Callable[[str, bytes], object], *, qos: int = 2
    ) -> None:
        self._stage, self._filter, self._qos = stage, topic_filter, qos
        self._receive = receive
        self._granted = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.reconnect_delay_set(1, 2)
        self._client.on_connect, self._client.on_subscribe = self._on_connect, self._on_subscribe
        self._client.on_message = self._on_message

    def connect(self) -> None:
        """Return when the subscription is granted; raises OSError, TimeoutError."""
        self._client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=30)
        self._client.loop_start()
        if not self._granted.wait(CONNECT_TIMEOUT_S):
            raise TimeoutError(f"the subscription to {self._filter} was not granted in {CONNECT_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        """Disconnect; the session stays at the server."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: Client, _userdata: object, _flags: Any, _reason: Any, _properties: Any) -> None:
        client.subscribe(self._filter, qos=self._qos)

    def _on_subscribe(self, _client: Client, _userdata: object, _mid: int, reasons: list[Any], _props: Any) -> None:
        if not reasons[0].is_failure:
            self._granted.set()

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self._receive(message.topic, message.payload)
