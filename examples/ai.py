"""AI: inference that answers instead of being polled, knowledge that is never stale, an assistant that speaks first.

    ai/requests            {"id", "question", "sent_ms"}           MQTT 5 with Response Topic and Correlation Data
    ai/replies/desk        {"id", "answer", "document", "worker"}  from one of three workers, a shared subscription
    kb/documents/<name>    {"name", "version", "text", "sent_ms"}  retained; an event whenever a document changes
    kb/index/<name>        slices with their vectors, retained     from Spark, the newest version
    app/<user>/events      {"user", "seq", "text", "sent_ms"}      what people type and open
    app/<user>/assistant   {"user", "intent", "text", "seq"}       from Spark, unasked

Three patterns of event-driven AI. Requests wait in the log until a worker has answered them: one is killed (kill -9)
with a request in its hands, and another answers it. Documents become slices, vectors and an index as they change, and
answers follow in seconds. Intents are recognised in the stream of a user's events, and the assistant speaks first.
The model works offline by default; `--model` takes a real one (see ai_models.py).

    python examples/ai.py [--seconds 40] [--model hashing|minilm|FOLDER|http://HOST/v1] [--check]
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import Claim, Example, Inbox, Living, Picture, Queries, Run, Stage, equal, holds, run
from kit.later import pd

import numpy as np
from ai_models import load
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.picture import AMBER, BLUE, FAINT, GREEN, INK, MUTED, RED, SERIES, TEAL, VIOLET, beside
from runtime.clock import SystemClock

DOCUMENTS, EVENTS, ASSISTANT = "kb/documents/+", "app/+/events", "app/+/assistant"
DOCUMENT = "name string, version long, text string, sent_ms long"
EVENT = "user string, seq long, text string, sent_ms long"
WORKERS = ("worker-1", "worker-2", "worker-3")
ASK_EVERY_S = 0.25
KILL_AT = 0.35
"""The share of the story at which a worker dies; the next moment when it has a request in its hands."""
FRESH_S_MAX, FRESH_BUSY_S_MAX, BUSY_LOAD = 15.0, 90.0, 1.0
"""Longest time, that `--check` lets pass, from a changed document to the first answer that knows it: on a quiet
machine, and on one with a load per core above BUSY_LOAD. People ask on for so long to see it."""
CONNECT_TIMEOUT_S = 30.0
WATCHED = "How much pressure may pump P7 run at?"
PRESSURES = (6, 8, 5, 9, 7)
"""What the manual of the pump says, version by version."""
BOOKS = {
    "pump-p7": "Pump P7 is a centrifugal pump of the cooling circuit. Its impeller is made of bronze.\n\n"
    "The pressure of pump P7 may be {bar} bar at most; above it the relief valve opens.\n\n"
    "Grease the bearings of the pump every 2,000 hours of work.",
    "press-12": "Press 12 stamps covers. Change its die after 80,000 strokes.\n\n"
    "Press 12 must be locked and tagged before anyone reaches into the guard.",
    "shift-plan": "The early shift begins at six and ends at two. The late shift begins at two.\n\n"
    "Holidays are granted by the shift leader, two weeks ahead.",
    "spare-parts": "Spare seals and bearings are in store B, shelf 4. Filters are in store A.\n\n"
    "Order a spare part before noon and it arrives the next day.",
}
QUESTIONS = (
    WATCHED, "When must the die of press 12 be changed?", WATCHED, "Where are spare seals and bearings?", WATCHED,
    "Who grants holidays?", WATCHED, "When do I grease the bearings of the pump?",
)  # fmt: skip
EXPECTED = {
    QUESTIONS[1]: "press-12", QUESTIONS[3]: "spare-parts", QUESTIONS[5]: "shift-plan", QUESTIONS[7]: "pump-p7",
    WATCHED: "pump-p7",
}  # fmt: skip
INTENTS = {
    "breakdown": ("machine makes a strange noise", "pump vibrates and leaks", "error code on the display",
                  "motor does not start"),
    "buy": ("price list of new machines", "request a quote for a press", "compare models and prices", "order form"),
    "leave": ("cancel my contract", "notice period of the contract", "delete my account", "terms of cancellation"),
}  # fmt: skip
SIGNS_IN = "signs in"
SEEN = {
    "breakdown": ("search: strange noise from the machine", "opens: pump leaks, what to do", "search: error code E42",
                  "opens: motor does not start"),
    "buy": ("search: price of a new press", "opens: compare models", "search: quote for two machines",
            "opens: order form"),
    "leave": ("search: cancel contract", "opens: notice period", "search: delete account",
              "opens: terms of cancellation"),
    "none": ("opens: news of the week", "search: canteen menu", "opens: photo of the team", "search: weather",
             "opens: calendar", "search: parking", SIGNS_IN),
}  # fmt: skip
"""What people do; intents are recognised by likeness to the sentences above, not by equality."""
OPENINGS = {
    "breakdown": "Sounds like trouble with a machine. Shall I bring a technician on the line?",
    "buy": "Looking for a new machine? I can have a quote for you in a minute.",
    "leave": "Before you go: may I look at your contract with you?",
}
ALIKE_MIN = 0.24
SPEAKS_AFTER = 2
"""So many events of one intent let the assistant speak."""


# --- People, documents, workers ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """One request."""

    question: str
    sent_ms: int
    replies: list[dict[str, Any]] = field(default_factory=list)
    """All answers, the first one first, each with `at_ms`."""


@dataclass(slots=True)
class Change:
    """A new version of the watched document."""

    version: int
    bar: int
    sent_ms: int


class People(Living):
    """A desk that asks, editors that change a document, a dozen users, and three workers as processes.

    Thread rule: one thread publishes, one reads each worker's lines, paho's threads bring replies; one lock guards all.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__("people")
        self._stage = stage
        self._clock = SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self.sent = 0
        self.acknowledged = 0
        self.asked: dict[str, Asked] = {}
        self.changes: list[Change] = []
        self.greetings: list[dict[str, Any]] = []
        self.users, self.plan = people(np.random.default_rng(stage.seed))
        """By user the intent; and all events in their order."""
        self.events: list[tuple[str, int, str, int]] = []
        """What was sent: user, number, text, ms."""
        self.in_hand: dict[str, str] = {}
        """By worker the request it works on."""
        self.killed: dict[str, Any] = {}
        self._workers: dict[str, subprocess.Popen[str]] = {}
        self._client = self._desk()
        self._connected = threading.Event()
        self._inbox = Inbox(stage, "app", ASSISTANT, self._greeted, qos=2)
        self._begun = threading.Event()

    def _desk(self) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id="desk", protocol=MQTTProtocolVersion.MQTTv5)
        client.on_connect = lambda made, *_: made.subscribe("ai/replies/desk", qos=1)
        client.on_subscribe = lambda *_: self._connected.set()
        client.on_publish, client.on_message = self._on_publish, self._replied
        return client

    def start(self) -> None:
        """Connect, publish the documents, start the workers; raises OSError, TimeoutError."""
        self._client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=60)
        self._client.loop_start()
        if not self._connected.wait(CONNECT_TIMEOUT_S):
            raise TimeoutError("the server did not answer the desk")
        self._inbox.connect()
        for name in BOOKS:
            self._edit(name, 1, PRESSURES[0])
        for user in self.users:
            self._say(user, 0, SIGNS_IN)
        for name in WORKERS:
            self._start_worker(name)
        self._thread.start()

    def _start_worker(self, name: str) -> None:
        program = Path(__file__).with_name("ai_worker.py")
        with self._stage.folder(f"{name}.log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, str(program), "--stage", str(self._stage.folder("stage.json")), "--name", name],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._workers[name] = worker
        threading.Thread(target=self._hear, args=(name, worker), daemon=True).start()

    def _hear(self, name: str, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            event = json.loads(line)
            with self._changed:
                if event["event"] == "began":
                    self.in_hand[name] = event["id"]
                else:
                    self.in_hand.pop(name, None)

    def kill_worker(self) -> str:
        """Kill the one that has had its request for the shortest time; return its name, empty when all are idle."""
        with self._changed:
            if not self.in_hand:
                return ""
            name, request = list(self.in_hand.items())[-1]
            self._workers[name].kill()
            self.killed = {"worker": name, "id": request, "at_ms": self._clock.now_ms()}
            self.in_hand.pop(name)
        self._workers.pop(name).wait()
        return str(name)

    def _publish(self, topic: str, body: dict[str, Any], *, retain: bool = False, properties: Any = None) -> None:
        with self._changed:
            self.sent += 1
        self._client.publish(topic, json.dumps(body), qos=1, retain=retain, properties=properties)

    def _on_publish(self, *_: object) -> None:
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def _edit(self, name: str, version: int, bar: int) -> None:
        now_ms = self._clock.now_ms()
        if name == "pump-p7":
            self.changes.append(Change(version, bar, now_ms))
        text = BOOKS[name].format(bar=bar)
        body = {"name": name, "version": version, "text": text, "sent_ms": now_ms}
        self._publish(f"kb/documents/{name}", body, retain=True)

    def _ask(self, number: int) -> None:
        request = f"r{number:04d}"
        question = QUESTIONS[number % len(QUESTIONS)]
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic, properties.CorrelationData = "ai/replies/desk", request.encode()
        now_ms = self._clock.now_ms()
        with self._changed:
            self.asked[request] = Asked(question, now_ms)
        body = {"id": request, "question": question, "sent_ms": now_ms}
        self._publish("ai/requests", body, properties=properties)

    def _say(self, user: str, seq: int, text: str) -> None:
        now_ms = self._clock.now_ms()
        self.events.append((user, seq, text, now_ms))
        self._publish(f"app/{user}/events", {"user": user, "seq": seq, "text": text, "sent_ms": now_ms})

    def _replied(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        properties: Any = message.properties  # paho keeps what was sent as attributes
        reply = json.loads(message.payload) | {"at_ms": self._clock.now_ms()}
        with self._changed:
            self.asked[properties.CorrelationData.decode()].replies.append(reply)
            self._changed.notify_all()

    def _greeted(self, _topic: str, body: bytes) -> None:
        with self._changed:
            self.greetings.append(json.loads(body) | {"at_ms": self._clock.now_ms()})
            self._changed.notify_all()

    def go_live(self) -> None:
        """Spark is there: people begin."""
        self._begun.set()

    def _live(self) -> None:
        self._begun.wait()
        begun_s = self._clock.monotonic_ns() / 1e9
        asks, edits, events = 0, 0, 0
        while not self._stopped.wait(0.02):
            told_s = self._clock.monotonic_ns() / 1e9 - begun_s
            if told_s >= asks * ASK_EVERY_S:
                self._ask(asks)
                asks += 1
            if edits < len(PRESSURES) - 1 and told_s >= self._stage.seconds * (edits + 0.7) / len(PRESSURES):
                edits += 1
                self._edit("pump-p7", edits + 1, PRESSURES[edits])
            if events < len(self.plan) and told_s >= 0.8 * self._stage.seconds * events / len(self.plan):
                self._say(*self.plan[events])
                events += 1

    def knows_all(self) -> bool:
        """Whether an answer has told the newest version of the document that people ask for."""
        with self._changed:
            told = [one.replies[0]["version"] for one in self.asked.values() if one.replies and one.question == WATCHED]
        return len(PRESSURES) in told

    def stop(self) -> None:
        """Nobody asks any more."""
        self._begun.set()
        super().stop()

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged and every request is answered; then the workers are stopped."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.acknowledged >= self.sent, timeout_s)
            self._changed.wait_for(lambda: all(one.replies for one in self.asked.values()), timeout_s)
        for worker in self._workers.values():
            worker.terminate()
            worker.wait()
        self._client.disconnect()
        self._client.loop_stop()
        return done

    def await_greetings(self, count: int, timeout_s: float) -> None:
        """Wait for the assistant, then a moment more for one too many; disconnect."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.greetings) >= count, timeout_s)
        threading.Event().wait(1.0)
        self._inbox.close()

    def figures(self) -> Mapping[str, str]:
        """The three patterns in a line each."""
        asked = list(self.asked.values())
        answered = [one for one in asked if one.replies]
        watched = [one.replies[0] for one in answered if one.question == WATCHED]
        newest = f"version {watched[-1]['version']} of {len(self.changes)}" if watched else "no answer yet"
        return {
            "requests": f"{len(answered)} of {len(asked)} answered",
            "knowledge": newest,
            "assistant": f"spoke first to {len(self.greetings)} people",
        }


def people(rng: np.random.Generator) -> tuple[dict[str, str], list[tuple[str, int, str]]]:
    """Twelve users with an intent or none, and their events, in turn."""
    users = {f"user-{number:02d}": list(SEEN)[number % len(SEEN)] for number in range(12)}
    plan = []
    for user, intent in users.items():
        idle = list(rng.choice(SEEN["none"][:-1], 4, replace=False))
        meant = list(rng.permutation(SEEN[intent]))[:3] if intent != "none" else []
        texts = [idle[0], *meant[:1], idle[1], *meant[1:], *idle[2:]]
        plan += [(user, seq, str(text)) for seq, text in enumerate(texts, 1)]
    order = np.argsort([seq + rng.uniform(0, 0.9) for _, seq, _ in plan], kind="stable")
    return users, [plan[place] for place in order]


# --- The pipeline ------------------------------------------------------------------------------------------------


def parsed(spark: SparkSession, stage: Stage, topic_filter: str, schema: str) -> DataFrame:
    """The bodies of a filter's messages as columns."""
    source = spark.readStream.format("rocketmq").options(**stage.source).option("mqttFilter", topic_filter)
    rows = source.option("columns", "queueOffset,body").load()
    body = F.from_json(F.col("body").cast("string"), schema).alias("body")
    return rows.select("queueOffset", body).select("queueOffset", "body.*")


def index_entry(model: str, name: str, version: int, text: str) -> str:
    """Slice a document by paragraphs and embed the slices: the body of its index message."""
    slices = [part.strip() for part in text.split("\n\n") if part.strip()]
    vectors = base64.b64encode(load(model).embed(slices).tobytes()).decode()
    return json.dumps({"name": name, "version": int(version), "slices": slices, "vectors": vectors})


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """Documents to index entries, events to openings of the assistant."""
    model = stage.words["model"]

    @F.pandas_udf("string")
    def indexed(name: pd.Series, version: pd.Series, text: pd.Series) -> pd.Series:
        return pd.Series([index_entry(model, *one) for one in zip(name, version, text, strict=True)], dtype="object")

    @F.pandas_udf("string")
    def intent(texts: pd.Series) -> pd.Series:
        return pd.Series(intents_of(model, texts.tolist()), dtype="object")

    def index() -> Any:
        rows = parsed(spark, stage, DOCUMENTS, DOCUMENT)
        topic = F.concat(F.lit("kb/index/"), "name").alias("mqttTopic")
        body = indexed("name", "version", "text").alias("body")
        return stage.to_mqtt(rows.select(topic, body, F.lit(1).alias("qos"), F.lit(True).alias("retain")), "index")

    def assistant() -> Any:
        seen = parsed(spark, stage, EVENTS, EVENT).withColumn("intent", intent("text"))
        found = seen.groupBy("user").transformWithState(
            statefulProcessor=Listener(), outputStructType="user string, intent string, seq long, sent_ms long",
            outputMode="Append", timeMode="None",
        )  # fmt: skip
        opening = F.create_map(*(F.lit(word) for pair in OPENINGS.items() for word in pair))[F.col("intent")]
        body = F.to_json(F.struct("user", "intent", opening.alias("text"), "seq", "sent_ms")).alias("body")
        topic = F.concat(F.lit("app/"), "user", F.lit("/assistant")).alias("mqttTopic")
        return stage.to_mqtt(found.select(topic, body, F.lit(2).alias("qos")), "assistant")

    return {"index": index, "assistant": assistant}


def intents_of(model: str, texts: list[str]) -> list[str]:
    """The intent whose sentences a text is most like, or `none`."""
    if not texts:
        return []
    names = [name for name, sentences in INTENTS.items() for _ in sentences]
    alike = load(model).embed(texts) @ load(model).embed([one for many in INTENTS.values() for one in many]).T
    return [names[best] if row[best] >= ALIKE_MIN else "none" for row, best in zip(alike, alike.argmax(1), strict=True)]


class Listener(StatefulProcessor):
    """Counts the intents of one user's events; yields one the first time it is seen often enough."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: how often each intent was seen, and the newest event."""
        self._state = handle.getValueState("seen", "newest long, counts map<string,int>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Follow the user's events in their order; one that came again changes nothing."""
        newest, counts = self._state.get() or (-1, {})
        counts = dict(counts)
        for row in sorted(rows, key=lambda one: one.queueOffset):
            if row.seq <= newest:
                continue
            newest = row.seq
            if row.intent != "none":
                counts[row.intent] = counts.get(row.intent, 0) + 1
                if counts[row.intent] == SPEAKS_AFTER:
                    yield Row(user=key[0], intent=row.intent, seq=row.seq, sent_ms=row.sent_ms)
        self._state.update((newest, counts))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


def during(play: Run) -> bool:
    """People begin when Spark is there; a worker is killed with a request in its hands."""
    devices: People = play.devices
    devices.go_live()
    if not devices.killed and play.live_s > KILL_AT * play.stage.seconds and (name := devices.kill_worker()):
        play.note(f"{name} is killed (kill -9) with request {devices.killed['id']} in its hands")
    return not devices.knows_all() and play.live_s < play.stage.seconds + FRESH_BUSY_S_MAX


# --- What must be true -------------------------------------------------------------------------------------------


def freshness(devices: People) -> list[tuple[Change, float | None]]:
    """For each change of the document, seconds until an answer knows it, or a later one; None if none does."""
    watched = sorted(
        (one.replies[0] for one in devices.asked.values() if one.question == WATCHED and one.replies),
        key=lambda reply: reply["at_ms"],
    )
    found: list[tuple[Change, float | None]] = []
    for change in devices.changes[1:]:
        first = [reply["at_ms"] for reply in watched if reply["version"] >= change.version
                 and f"{PRESSURES[reply['version'] - 1]} bar" in reply["answer"]]  # fmt: skip
        found.append((change, (first[0] - change.sent_ms) / 1000 if first else None))
    return found


def went_back(devices: People) -> int:
    """Answers from an older version of a document than the same worker had used before."""
    newest: dict[tuple[str, str], int] = {}
    count = 0
    replies = [reply for one in devices.asked.values() for reply in one.replies[:1]]
    for reply in sorted(replies, key=lambda one: one["at_ms"]):
        key = reply["worker"], reply["document"]
        count += reply["version"] < newest.get(key, 0)
        newest[key] = max(newest.get(key, 0), reply["version"])
    return count


def meant(devices: People) -> dict[str, str]:
    """Users whose events show an intent often enough, as the script of the story has it."""
    counts = Counter(
        (user, name) for user, _, text, _ in devices.events for name, texts in SEEN.items() if text in texts
    )
    return {user: name for (user, name), count in counts.items() if name != "none" and count >= SPEAKS_AFTER}


def check(play: Run) -> list[Claim]:
    """No request is lost, answers follow documents, the assistant speaks to those who need it, once."""
    devices: People = play.devices
    expected = meant(devices)
    devices.await_greetings(len(expected), 20)
    asked = list(devices.asked.values())
    answered = [one for one in asked if one.replies]
    took = [(one.replies[0]["at_ms"] - one.sent_ms) / 1000 for one in answered] or [0.0]
    right = sum(one.replies[0]["document"] == EXPECTED[one.question] for one in answered if one.replies[0]["document"])
    fresh = [seconds for _, seconds in freshness(devices)]
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    bound = FRESH_BUSY_S_MAX if load > BUSY_LOAD else FRESH_S_MAX
    slowest = max((seconds if seconds is not None else float("inf") for seconds in fresh), default=float("inf"))
    by_hand = devices.asked.get(devices.killed.get("id", ""))
    helper = by_hand.replies[0]["worker"] if by_hand and by_hand.replies else "nobody"
    spoken = Counter((one["user"], one["intent"]) for one in devices.greetings)
    correct = sum(expected.get(user) == intent for user, intent in spoken)
    delays = [(one["at_ms"] - one["sent_ms"]) / 1000 for one in devices.greetings] or [0.0]
    return [
        equal("messages", sent=devices.sent, acknowledged=devices.acknowledged),
        equal("requests", asked=len(asked), answered=len(answered)),
        holds("a worker died in the middle of one", helper not in {"nobody", devices.killed.get("worker")},
              f"{devices.killed.get('worker')} was killed with {devices.killed.get('id')}, {helper} answered it; "
              f"answers that came twice {sum(len(one.replies) - 1 for one in answered)}"),
        holds("answers come from the right document", right >= 0.9 * len(answered),
              f"{right} of {len(answered)}; p50 {np.percentile(took, 50):.1f} s, p95 {np.percentile(took, 95):.1f} s"),
        holds(f"an answer follows its document in less than {bound:.0f} s", fresh and slowest < bound,
              f"{len(fresh)} changes: " + ", ".join("never" if one is None else f"{one:.1f} s" for one in fresh)
              + f" (load per core {load:.1f})"),
        holds("no worker goes back to an older version", not went_back(devices), f"{went_back(devices)} answers did"),
        equal("the assistant speaks first", people_with_an_intent=len(expected), spoken_to=spoken.total(),
              rightly=correct),
        holds("and soon", devices.greetings or not expected,
              f"p50 {np.percentile(delays, 50):.1f} s after the event, at most {max(delays):.1f} s"),
    ]  # fmt: skip


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Each request on its way, the document and what was answered, events and openings by user."""
    devices: People = play.devices
    begin_ms = min(one.sent_ms for one in devices.asked.values())
    fresh = [seconds for _, seconds in freshness(devices) if seconds is not None]
    page = Picture(
        f"A worker died, {len(devices.asked)} of {len(devices.asked)} requests were answered"
        if all(one.replies for one in devices.asked.values()) else "Some requests were not answered",
        f"answers follow a changed document after {np.mean(fresh) if fresh else 0:.1f} s; the assistant spoke first to "
        f"{len(devices.greetings)} people · model: {play.stage.words['model']}",
        height=9.6,
    )  # fmt: skip
    grid = page.grid(3, 1, height_ratios=[1.15, 0.85, 1.15], hspace=0.5)
    requests = page.axes(grid[0], "Asynchronous inference: every request, from question to answer", y="s to the answer")
    knowledge = page.axes(grid[1], f"Live knowledge: “{WATCHED}”", y="bar", sharex=requests)
    assistant = page.axes(
        grid[2], "The assistant speaks first, at a second sign of one intent", x="seconds", sharex=requests
    )
    last_ms = max(reply["at_ms"] for one in devices.asked.values() for reply in one.replies)
    last_ms = max([last_ms, *(one["at_ms"] + 1000 for one in devices.greetings)])
    requests.set_xlim(0, (last_ms - begin_ms) / 1000)
    draw_requests(requests, devices, begin_ms)
    draw_knowledge(knowledge, devices, begin_ms)
    draw_assistant(assistant, devices, begin_ms)
    return page


def draw_requests(axes: Any, devices: People, begin_ms: int) -> None:
    """A point per request, by the worker that answered it, and the death of one."""
    for name, color in zip(WORKERS, (BLUE, TEAL, VIOLET), strict=True):
        mine = [one for one in devices.asked.values() if one.replies and one.replies[0]["worker"] == name]
        at_s = [(one.sent_ms - begin_ms) / 1000 for one in mine]
        took = [(one.replies[0]["at_ms"] - one.sent_ms) / 1000 for one in mine]
        axes.vlines(at_s, 0, took, color=color, linewidth=0.8, alpha=0.35)
        axes.scatter(at_s, took, s=18, color=color, linewidth=0, label=f"{name}: {len(mine)}")
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.3)
    if not devices.killed:
        return
    killed_s = (devices.killed["at_ms"] - begin_ms) / 1000
    axes.axvline(killed_s, color=RED, linewidth=1.2)
    one = devices.asked[devices.killed["id"]]
    if one.replies:
        said = f"{devices.killed['worker']} killed; its request is answered by {one.replies[0]['worker']}"
        beside(axes, (killed_s, 0.9), said, RED)
        took = (one.replies[0]["at_ms"] - one.sent_ms) / 1000
        axes.scatter((one.sent_ms - begin_ms) / 1000, took, s=90, facecolor="none", edgecolor=RED, linewidth=1.6)


def draw_knowledge(axes: Any, devices: People, begin_ms: int) -> None:
    """What the document says as a line, what was answered as points, and the time between."""
    end_s = max(reply["at_ms"] for one in devices.asked.values() for reply in one.replies) / 1000 - begin_ms / 1000
    at_s = [max(0.0, (change.sent_ms - begin_ms) / 1000) for change in devices.changes]
    bars = [change.bar for change in devices.changes]
    axes.step([*at_s, end_s], [*bars, bars[-1]], where="post", color=INK, linewidth=1.6, label="the document")
    for one in devices.asked.values():
        if one.question != WATCHED or not one.replies:
            continue
        said = [bar for bar in PRESSURES if f"{bar} bar" in one.replies[0]["answer"]]
        if said:
            moment = (one.replies[0]["at_ms"] - begin_ms) / 1000
            now = [bar for at, bar in zip(at_s, bars, strict=True) if at <= moment][-1]
            axes.scatter(moment, said[0], s=20, color=GREEN if said[0] == now else AMBER, linewidth=0, zorder=4)
    axes.scatter([], [], s=20, color=GREEN, label="answer, up to date")
    axes.scatter([], [], s=20, color=AMBER, label="answer from the version before")
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_ylim(min(bars) - 1, max(bars) + 1.2)
    for change, seconds in freshness(devices):
        if seconds is not None:
            at = ((change.sent_ms - begin_ms) / 1000, change.bar + 0.5)
            beside(axes, at, f"{seconds:.1f} s", MUTED, data=True, bbox=None)


def draw_assistant(axes: Any, devices: People, begin_ms: int) -> None:
    """Events of each user, those with an intent in colour, and the moment when the assistant spoke."""
    colors = dict(zip(INTENTS, (*SERIES[:1], AMBER, VIOLET), strict=True))
    names = list(devices.users)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelsize=7.5)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    for user, _, text, sent_ms in devices.events:
        name = next(name for name, texts in SEEN.items() if text in texts)
        axes.scatter((sent_ms - begin_ms) / 1000, names.index(user), s=22 if name != "none" else 12,
                     color=colors.get(name, FAINT), linewidth=0)  # fmt: skip
    for one in devices.greetings:
        first, last = (one["sent_ms"] - begin_ms) / 1000, (one["at_ms"] - begin_ms) / 1000
        row, color = names.index(one["user"]), colors[one["intent"]]
        axes.plot([first, last], [row, row], color=color, linewidth=1.2)
        axes.scatter(last, row, s=70, marker="<", color=color, linewidth=0, zorder=4)
        beside(axes, (last, row), f" {one['text']} ", data=True, fontsize=7.5)
    for name, color in colors.items():
        axes.scatter([], [], s=24, color=color, label=name)
    axes.scatter([], [], s=12, color=FAINT, label="none")
    axes.scatter([], [], s=60, marker="<", color=MUTED, label="the assistant speaks")
    axes.legend(loc="lower right", ncols=5, bbox_to_anchor=(1, 1), borderaxespad=0.2)


EXAMPLE = Example(
    name="ai",
    headline="Answers instead of polling, knowledge that follows its documents, an assistant that speaks first.",
    filters=["ai/#", "kb/documents/+", "app/#"],
    devices=People,
    queries=queries,
    during=during,
    check=check,
    picture=picture,
    seconds=40.0,
    live=True,
    arguments={
        "model": ("hashing", "hashing, minilm, a folder or name of sentence-transformers, or http://HOST/v1"),
        "think": ("0.4", "seconds that a worker takes for an answer beside its model"),
    },
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
