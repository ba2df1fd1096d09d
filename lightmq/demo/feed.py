"""The device of the demo and the readings that it publishes, from this machine's sensors or from a file.

`MachineSensors` reads this machine through psutil, without any set-up: the set of sensors is fixed when the object is
made, so the topics stay the same; a sensor that fails once is read again the next time. Rates (disk, network) are per
second since the last sample. `read_series` reads a CSV file with a time and a value in each line: every line becomes
one reading or a named error; nothing is skipped silently.

`Device` publishes readings and obeys commands, over MQTT with paho-mqtt like any device would. A reading counts as
published after a PUBACK that accepts it, as refused after one that does not; a refused connection or subscription ends
`connect` with its reason. Each command is counted by its identity, so that a second delivery is noticed.
Invariant: after `stop()` returns no further reading is published by the feed. Thread rule: paho calls back on its own
thread; shared numbers are guarded by one lock.
"""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import psutil
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqtt_bridge.paho_client import in_words, why_ended
from runtime.clock import Clock

KEEP_ALIVE_S = 30
IN_FLIGHT_MAX = 1000
ACKNOWLEDGEMENT_SENSOR = "round_trip_ms"
"""What the device publishes when it has obeyed: how long ago the reading was sent that caused the command."""
COMMANDS = "commands"


class Device:
    """A publisher of `machines/<label>/<sensor>` and a subscriber of `machines/<label>/commands`, both QoS 1."""

    def __init__(self, label: str, clock: Clock) -> None:
        self.label = label
        self._clock = clock
        self._answered = threading.Condition(threading.Lock())
        """Guards the numbers below, and is notified when every reading sent is answered."""
        self._ready = threading.Event()
        self._refusal = ""
        self._closing = False
        self.sent = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        """Readings the server refused, by reason."""
        self.losses: Counter[str] = Counter()
        """How often the other side ended a connection, by reason."""
        self.commands: dict[str, int] = {}
        self.round_trips_ms: list[float] = []
        """Reading to command, for readings sent since `measure_from_ms`; earlier ones are a backlog."""
        self.measure_from_ms: int | None = None
        self.events: list[dict[str, Any]] = []
        self._publisher = self._client("sensors", clean=True)
        self._actuator = self._client("actuator", clean=False)

    def _client(self, role: str, *, clean: bool) -> Client:
        name = f"{self.label}-{role}"
        if clean:  # readings are published with MQTT 5, which gives a refused one its reason
            client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        else:
            client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        if clean:
            client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        return client

    def connect(self, host: str, port: int, timeout_s: float = 15.0) -> None:
        """Connect both clients and return once the subscription for commands is granted.

        Raises OSError, ConnectionError with the server's reason when it refuses, TimeoutError.
        """
        topic = self._command_topic
        for client in (self._actuator, self._publisher):
            client.connect(host, port, keepalive=KEEP_ALIVE_S)
            client.loop_start()
        if not self._ready.wait(timeout_s):
            raise TimeoutError(
                f"the proxy at {host}:{port} did not grant the subscription to {topic} in {timeout_s:.0f} s"
            )
        if self._refusal:
            self.close()
            raise ConnectionError(f"the proxy at {host}:{port} refused {self._refusal}")

    @property
    def _command_topic(self) -> str:
        return f"machines/{self.label}/{COMMANDS}"

    def tell(self, text: str) -> None:
        """Publish a sentence about this run on `results/<label>/events`, for whoever watches; it is no reading."""
        self._actuator.publish(f"results/{self.label}/events", json.dumps({"text": text}), qos=1)

    def publish(self, sensor: str, value: float, time_ms: int, **more: str) -> None:
        """Publish one reading, with `more` in its JSON, at QoS 1; does not wait for its acknowledgement."""
        with self._answered:
            self.sent += 1
            identity = f"{self.label}-{self.sent}"
        reading = {
            "id": identity,
            "sensor": sensor,
            "value": value,
            "time_ms": time_ms,
            "sent_ms": self._clock.now_ms(),
            **more,
        }
        self._publisher.publish(f"machines/{self.label}/{sensor}", json.dumps(reading), qos=1)

    def _on_connect(self, client: Client, _userdata: object, _flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._refuse(f"the connection: {in_words(reason, properties)}")
        elif client is self._actuator:
            client.subscribe(self._command_topic, qos=1)

    def _on_subscribe(self, _client: Client, _userdata: object, _mid: int, reasons: list[Any], properties: Any) -> None:
        if reasons[0].is_failure:
            self._refuse(f"the subscription to {self._command_topic}: {in_words(reasons[0], properties)}")
        self._ready.set()

    def _refuse(self, what: str) -> None:
        with self._answered:
            self._refusal = self._refusal or what
            self.losses[f"refused {what}"] += 1
        self._ready.set()

    def _on_disconnect(self, client: Client, _userdata: object, flags: Any, reason: Any, properties: Any) -> None:
        if not self._closing:
            with self._answered:
                self.losses[why_ended(flags, reason, properties, is_v5=client is self._publisher)] += 1

    def _on_publish(self, _client: Client, _userdata: object, _mid: int, reason: Any, properties: Any) -> None:
        with self._answered:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self.acknowledged += 1
            if self.unanswered == 0:
                self._answered.notify_all()

    @property
    def unanswered(self) -> int:
        """Readings sent that were neither acknowledged nor refused."""
        return self.sent - self.acknowledged - self.refused.total()

    def problems(self) -> list[str]:
        """What became of readings that are not published, in sentences; empty when all are."""
        with self._answered:
            found = [f"{count:,} readings were refused: {reason}" for reason, count in self.refused.items()]
            if self.unanswered:
                found.append(f"{self.unanswered:,} readings were not acknowledged")
                found += [f"{count} x {reason}" for reason, count in self.losses.most_common()]
            return found

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        command = json.loads(message.payload)
        now_ms = self._clock.now_ms()
        round_trip_ms = float(now_ms - command["sent_ms"])
        with self._answered:
            identity = command["id"]
            self.commands[identity] = self.commands.get(identity, 0) + 1
            if self.measure_from_ms is not None and command["sent_ms"] >= self.measure_from_ms:
                self.round_trips_ms.append(round_trip_ms)
            self.events.append(command | {"arrived_ms": now_ms})
        self.publish(ACKNOWLEDGEMENT_SENSOR, round_trip_ms, now_ms, command=identity)

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until every reading sent so far is acknowledged or refused."""
        with self._answered:
            return self._answered.wait_for(lambda: self.unanswered == 0, timeout_s)

    def close(self) -> None:
        """Disconnect both clients and stop their threads."""
        self._closing = True
        for client in (self._publisher, self._actuator):
            client.disconnect()
            client.loop_stop()


Sample = dict[str, float]


class MachineSensors:
    """Samples per-core CPU, memory, disk, network, load and temperatures."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._last_counters: dict[str, float] = {}
        self._last_time_s = monotonic_s()
        psutil.cpu_percent(percpu=True)
        self.names = sorted(self.sample())

    def sample(self) -> Sample:
        """Read every sensor once: name -> value."""
        readings: Sample = {f"cpu{core}_percent": used for core, used in enumerate(psutil.cpu_percent(percpu=True))}
        memory = psutil.virtual_memory()
        readings["memory_percent"] = memory.percent
        readings["memory_available_mb"] = memory.available / 1e6
        readings["swap_percent"] = psutil.swap_memory().percent
        readings["disk_percent"] = psutil.disk_usage("/").percent
        readings["processes"] = float(len(psutil.pids()))
        for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
            readings[f"load_{minutes}min"] = load
        readings |= self._rates()
        readings |= temperatures()
        return readings

    def _rates(self) -> Sample:
        counters: dict[str, float] = {}
        disk = psutil.disk_io_counters()
        if disk is not None:
            counters |= {"disk_read_bytes": disk.read_bytes, "disk_write_bytes": disk.write_bytes}
        network = psutil.net_io_counters()
        counters |= {"network_sent_bytes": network.bytes_sent, "network_received_bytes": network.bytes_recv}
        statistics = psutil.cpu_stats()
        counters["context_switches"] = statistics.ctx_switches
        now_s = self._monotonic_s()
        elapsed_s = max(now_s - self._last_time_s, 1e-3)
        rates = {
            f"{name}_per_s": (count - self._last_counters.get(name, count)) / elapsed_s
            for name, count in counters.items()
        }
        self._last_counters, self._last_time_s = counters, now_s
        return rates


def temperatures() -> Sample:
    """Temperatures in degrees Celsius, where the machine has sensors for them."""
    read = getattr(psutil, "sensors_temperatures", None)
    if read is None:
        return {}
    return {
        f"temperature_{chip}_{number}": entry.current
        for chip, entries in read().items()
        for number, entry in enumerate(entries)
        if entry.current is not None
    }


class BadSeries(ValueError):
    """The file is not a series of (time, value); the text names the line."""


def read_series(path: Path) -> Iterator[tuple[int, float]]:
    """Yield (time in ms since 1970 UTC, value) for each line after the header."""
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows, None)
        if header is None or len(header) < 2:
            raise BadSeries(f"{path}: the first line must name two columns: timestamp,value")
        for number, row in enumerate(rows, start=2):
            try:
                moment = datetime.fromisoformat(row[0])
                value = float(row[1])
            except (IndexError, ValueError) as reason:
                raise BadSeries(f"{path}, line {number}: {reason}") from reason
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            yield int(moment.timestamp() * 1000), value


READINGS_PER_S = 60.0
"""A little above the fifty that the demo promises."""
UNACKNOWLEDGED_MAX = 5000
"""A replay waits for acknowledgements beyond this many, so that the device's memory stays small."""


LATENESS_SENSOR = "wakeup_late_ms"
"""How late the sampling thread woke up: what a busy machine does to its processes, and never quite the same."""


class ReadingSource(Protocol):
    """A source of readings for the demo."""

    description: str

    def start(self) -> None:
        """Begin to publish."""

    def stop(self) -> None:
        """End the thread; no reading is published after the return."""

    def finished(self) -> bool:
        """Whether everything there is has been published."""


class SensorFeed:
    """Samples this machine so often that READINGS_PER_S are published."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._sensors = MachineSensors(lambda: clock.monotonic_ns() / 1e9)
        self.sensor_count = len(self._sensors.names) + 1
        self._interval_s = self.sensor_count / READINGS_PER_S
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.description = (
            f"{self.sensor_count} sensors of this machine, {READINGS_PER_S:.0f} readings/s over MQTT, QoS 1"
        )

    def start(self) -> None:
        """Start the thread that publishes readings."""
        self._thread.start()

    def _sample(self) -> None:
        due_s = self._clock.monotonic_ns() / 1e9
        while not self._stopped.is_set():
            now_ms = self._clock.now_ms()
            lateness_ms = (self._clock.monotonic_ns() / 1e9 - due_s) * 1000
            for name, value in (self._sensors.sample() | {LATENESS_SENSOR: lateness_ms}).items():
                self._device.publish(name, value, now_ms)
            # What was missed is made up for, but not in a burst: between two samples in a row the kernel has counted
            # nothing, which reads as a CPU of 0 %.
            due_s = max(due_s + self._interval_s, self._clock.monotonic_ns() / 1e9 + self._interval_s / 2)
            self._stopped.wait(max(0.0, due_s - self._clock.monotonic_ns() / 1e9))

    def stop(self) -> None:
        """End the sampling thread."""
        self._stopped.set()
        self._thread.join()

    def finished(self) -> bool:
        """Sensors never run dry."""
        return False


class CsvFeed:
    """Publishes a recorded series as fast as the proxy acknowledges it."""

    def __init__(self, device: Device, path: Path) -> None:
        self._device = device
        self._sensor = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in path.stem)
        self._series = list(read_series(path))
        if not self._series:
            raise BadSeries(f"{path}: no readings below its first line")
        self._stopped = threading.Event()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._replay, daemon=True)
        self.description = (
            f"{len(self._series):,} recorded readings of {path.name}, as fast as they are acknowledged, QoS 1"
        )

    def start(self) -> None:
        """Start the thread that publishes readings."""
        self._thread.start()

    def _replay(self) -> None:
        for time_ms, value in self._series:
            while self._device.unanswered > UNACKNOWLEDGED_MAX and not self._stopped.wait(0.005):
                continue
            if self._stopped.is_set():
                return
            self._device.publish(self._sensor, value, time_ms)
        self._finished.set()

    def stop(self) -> None:
        """End the replay where it is."""
        self._stopped.set()
        self._thread.join()

    def finished(self) -> bool:
        """Whether the whole file was published."""
        return self._finished.is_set()
