"""The demo from start to end: stack up, readings in, Spark when it is there, drain, account, draw.

Invariant: whatever happens after the stack is up, the children are stopped and, if Spark ran, the accounting is
printed. The first Ctrl-C ends the running phase early and nothing else, the second one ends the demo. What fails is
said in a sentence; its details are in a log.

The options of the demo's command line; a frozen value afterwards.

Invariant: every option has a default that runs on any machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lightmq.demo.accounting import Accounting, LedgerRow, read_ledger, settle, stored_counts
from lightmq.demo.driver import SparkDriver, SparkFailed
from lightmq.demo.feed import BadSeries, CsvFeed, Device, ReadingSource, SensorFeed
from lightmq.demo.moments import Moments
from lightmq.demo.stack import BrokerFigures, Compilation, Installation, Stack
from lightmq.demo.view import Figures, LiveView, percentile, print_summary
from remoting.protocol.errors import LightMQError
from runtime.clock import SystemClock

SECONDS_DEFAULT = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """One run of the demo: how long (s), from what, into which folder, in one process or several."""

    seconds: float
    csv: Path | None
    processes: bool
    out: Path
    host: str
    plain: bool
    stay: bool


def host_label() -> str:
    """Name of this machine as one MQTT topic level: letters, digits, `-` and `_` only."""
    name = socket.gethostname().split(".")[0]
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name) or "machine"


def parse(arguments: Sequence[str]) -> DemoOptions:
    """Read the command line; argparse ends the program with a message on unknown options."""
    parser = argparse.ArgumentParser(
        prog="lightmq demo", description="devices -> MQTT -> one log -> Spark -> commands back"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=None,
        help="how long to run once Spark is up (60; with --csv until all is read)",
    )
    parser.add_argument(
        "--csv", type=Path, help="replay a recorded series (timestamp,value) as fast as it goes instead of the sensors"
    )
    parser.add_argument(
        "--processes", action="store_true", help="controller, broker and proxy as processes of their own, over TCP"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder for data, checkpoints and charts (replaced)"
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of the live view")
    parser.add_argument("--stay", action="store_true", help="keep the server and its page up at the end, until Ctrl-C")
    chosen = parser.parse_args(arguments)
    if chosen.csv is not None and not chosen.csv.is_file():
        parser.error(f"--csv {chosen.csv}: no such file")
    if chosen.seconds is not None and chosen.seconds <= 0:
        parser.error("--seconds must be above 0")
    default_seconds = SECONDS_DEFAULT if chosen.csv is None else 0.0
    return DemoOptions(
        seconds=default_seconds if chosen.seconds is None else chosen.seconds,
        csv=chosen.csv,
        processes=chosen.processes,
        out=chosen.out,
        host=host_label(),
        plain=chosen.plain,
        stay=chosen.stay,
    )


TICK_S = 0.25
SPARK_START_TIMEOUT_S = 600.0
"""Until the commands' query has made its first batch, restarts included; a busy machine needs minutes."""
DRAIN_TIMEOUT_S = 300.0
DELIVERY_TIMEOUT_S = 20.0
WARM_UP_S_MAX = 180.0
"""The seconds of a run count when every query has made a batch, or at the latest so long after Spark's first rows."""
INTERRUPTED = 130


class Demo:
    """One run of the demo, from the start of the servers to the printed accounting."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._console = Console()
        self._clock = SystemClock()
        self._interrupted = threading.Event()
        self._out = options.out.resolve()
        self._device = Device(options.host, self._clock)
        self._spark = SparkDriver(self._out / "spark.log")
        self._compilation = Compilation(self._out / "compilation.log")
        self._restarts_told = 0
        self._gave_up = ""
        self._snapshot = Figures()
        self._moments = Moments(self._clock)

    def run(self) -> int:
        """Run the demo; return the exit status: 0 only if the accounting holds."""
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGTERM, self._interrupt)
        stack = Stack(self._out / "data")
        installation = Installation(self._out / "installation.log")
        try:
            self._prepare_folder()
            installation.begin()
            self._prepare_spark(installation)
            self._ports = stack.start(processes=self._options.processes)
            self._figures = BrokerFigures(self._ports.admin)
            with LiveView(self._console, plain=self._options.plain) as view:
                self._view = view
                accounting, notes = self._run_on(installation)
            print_summary(self._console, accounting, self._device.round_trips_ms, notes)
            self._finish_compilation()
            self._stay()
            return 0 if accounting.holds and not self._device.problems() and not self._gave_up else 1
        except (KeyboardInterrupt, Stopped) as end:
            self._spark.abandon()
            self._print(f"the demo was stopped{f': {end}' if str(end) else ''}")
            return INTERRUPTED
        except Exception as failure:  # noqa: BLE001 - whatever it is, people get a sentence and the log the rest
            return self._fail(failure)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # what was started is stopped, however impatient somebody is
            self._spark.stop()
            stack.stop()
            installation.stop()
            self._compilation.stop()

    def _interrupt(self, *_: object) -> None:
        """End early, with the accounting; the second time, end at once."""
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        self._interrupted.set()

    def _fail(self, failure: Exception) -> int:
        known = isinstance(failure, (RuntimeError, BadSeries, OSError, LightMQError))
        self._spark.abandon()
        text = str(failure) if known else f"{type(failure).__name__}: {failure}"
        if not known:
            log = self._out / "demo.log"
            log.write_text("".join(traceback.format_exception(failure)))
            text += f"; where it happened is in {shorten(log)}"
        self._print(f"[red]demo failed:[/red] {escape(text)}")
        return 1

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _stay(self) -> None:
        if not self._options.stay:
            return
        self._interrupted.clear()
        self._print(f"the server stays up until Ctrl-C: {self._link}")
        self._interrupted.wait()

    @property
    def _link(self) -> str:
        """The page that shows this machine's readings, and what Spark finds in them."""
        return self._ports.console_link(f"+/{self._options.host}/#")

    def _prepare_spark(self, installation: Installation) -> None:
        """Bring Spark's Java up beside the broker, whose ports it learns later, if all of it is installed."""
        if not installation.done.is_set() or self._interrupted.is_set():
            return
        from lightmq.spark_session import ensure_java

        ensure_java()
        self._spark.prepare()

    def _finish_compilation(self) -> None:
        """Wait for what makes the next start quicker; Ctrl-C leaves it for the next run."""
        self._interrupted.clear()
        if self._compilation.running:
            self._print("the compiled core is being finished for the next start; Ctrl-C leaves it for another time")
        elif self._spark.is_tidying:
            self._print("Java's classes are being kept for the next start; Ctrl-C leaves them for another time")
        while (self._compilation.running or self._spark.is_tidying) and not self._interrupted.wait(TICK_S):
            pass
        if self._spark.is_tidying:
            self._spark.abandon()
        if not self._compilation.running:
            self._compilation.tell(self._print)

    def _prepare_folder(self) -> None:
        for part in ("data", "checkpoints", "ledger"):
            shutil.rmtree(self._out / part, ignore_errors=True)
        self._out.mkdir(parents=True, exist_ok=True)
        for part in ("spark.log", "demo.log", "installation.log", "result.json"):
            (self._out / part).unlink(missing_ok=True)

    def _say(self, text: str, moment: str = "") -> None:
        """Print a sentence that stays, and show it on the page; `moment` is its name in the picture."""
        self._view.note(text)
        self._device.tell(text)
        if moment:
            self._moments.add(moment)

    def _run_on(self, installation: Installation) -> tuple[Accounting, list[str]]:
        form = "controller, broker and proxy as processes" if self._options.processes else "one process"
        up_s = self._moments.add("broker up")
        self._view.note(
            f"broker is up after {up_s:.1f} s ({form}): mqtt {self._ports.mqtt}, remoting {self._ports.nameserver}"
        )
        if self._ports.console_token:
            self._view.note(f"watch it live in a browser: {self._link}")
        self._compilation.begin()
        if self._compilation.running:
            self._view.note("in pure Python this time: the core is compiled beside it, at the lowest priority")
        self._device.connect("127.0.0.1", self._ports.mqtt)
        feed = self._feed()
        feed.start()
        try:
            self._say(f"readings: {feed.description}", "first reading")
            self._wait_for_spark(installation)
            if not self._interrupted.is_set():
                self._run_for_a_while(feed)
        except SparkFailed as failure:
            self._give_up(str(failure))
        except BaseException:
            feed.stop()
            raise
        return self._finish(feed)

    def _give_up(self, why: str) -> None:
        """Spark has stopped; the readings are stored all the same, and the accounting counts them."""
        self._gave_up = why
        self._say(f"Spark gave up: {why}", "Spark gave up")
        self._view.note("the accounting counts what had arrived by then; run again to start over")

    def _feed(self) -> ReadingSource:
        if self._options.csv is not None:
            return CsvFeed(self._device, self._options.csv)
        return SensorFeed(self._device, self._clock)

    def _tick(self, phase: str, spark_note: str = "") -> None:
        shot = self._snapshot
        elapsed_s = self._moments.elapsed_s
        shot.readings_per_s = self._device.acknowledged / elapsed_s if elapsed_s else 0.0
        shot.phase, shot.elapsed_s, shot.spark_note = phase, elapsed_s, spark_note
        shot.sent, shot.acknowledged = self._device.sent, self._device.acknowledged
        shot.commands = len(self._device.commands)
        trips = list(self._device.round_trips_ms)
        shot.round_trip_p50_ms, shot.round_trip_p95_ms = percentile(trips, 0.5), percentile(trips, 0.95)
        shot.messages_in, shot.messages_out, shot.confirm_lag_bytes = self._figures.read()
        shot.queries = dict(self._spark.progress)
        self._view.show(shot)
        for text in self._spark.restarts[self._restarts_told :]:
            self._restarts_told += 1
            self._say(text, "query restarted")
        self._compilation.tell(self._view.note)

    def _wait_for_spark(self, installation: Installation) -> None:
        while not installation.done.wait(TICK_S):
            self._tick("installing", f"Spark is being installed: {installation.progress}")
            if self._interrupted.is_set():
                raise Stopped("Spark was still being installed; run again to go on")
        installation.wait()
        if self._interrupted.is_set():
            raise Stopped("Spark had not started yet")
        from lightmq.spark_session import ensure_java

        choice = ensure_java()
        self._view.note(f"Java: {choice.why}")
        arguments = [
            "--nameserver",
            f"127.0.0.1:{self._ports.nameserver}",
            "--host",
            self._options.host,
            "--out",
            str(self._out),
        ]
        if self._options.csv is not None:
            arguments += ["--window", "1 day", "--watermark", "1 hour"]
        self._say("Spark starts", "Spark starts")
        self._spark.start(arguments)
        waited_from_s = self._moments.elapsed_s
        while not self._spark.count_of("ready"):
            if self._interrupted.wait(TICK_S):
                raise Stopped("Spark had not read anything yet")
            self._keep_spark()
            if self._moments.elapsed_s - waited_from_s > SPARK_START_TIMEOUT_S:
                raise SparkFailed(f"Spark did not start in {SPARK_START_TIMEOUT_S:.0f} s")
            self._tick("Spark starts", f"Spark: {self._spark.step}")
        self._say(
            f"Spark {self._spark.version}: first rows after {self._moments.elapsed_s:.1f} s", "Spark's first rows"
        )

    def _keep_spark(self) -> None:
        """Start Spark's process again if it was lost; raises SparkFailed when that does not help."""
        if sentence := self._spark.revive():
            self._say(sentence, "Spark started again")

    def _run_for_a_while(self, feed: ReadingSource) -> None:
        rows_s = self._moments.elapsed_s
        begun_s = 0.0
        while not self._interrupted.wait(TICK_S):
            self._keep_spark()
            elapsed_s = self._moments.elapsed_s
            if not begun_s and (self._spark.is_warm or elapsed_s - rows_s > WARM_UP_S_MAX):
                begun_s = elapsed_s
            if self._device.measure_from_ms is None and "commands" in self._spark.progress:
                self._device.measure_from_ms = self._clock.now_ms()
                self._say("every query has made a batch: what Spark finds goes back at once", "all queries up")
            self._tick("running" if begun_s else "starting", f"Spark: {self._spark.step}")
            if self._device.commands and not self._moments.has("first command back"):
                self._say(f"first command back after {elapsed_s:.1f} s", "first command back")
            if self._options.seconds and begun_s and elapsed_s - begun_s >= self._options.seconds:
                return
            if not self._options.seconds and feed.finished():
                return

    def _finish(self, feed: ReadingSource) -> tuple[Accounting, list[str]]:
        self._tick("draining")
        feed.stop()
        if not self._gave_up:
            try:
                self._drain()
            except SparkFailed as failure:
                self._give_up(str(failure))
        device = self._device
        self._tick("accounting")
        with self._view.waiting("waiting for the rows that Spark wrote to be read and counted"):
            rows = read_ledger(self._out / "ledger")
            accounting = settle(
                acknowledged=device.acknowledged,
                stored=stored_counts(self._ports.nameserver, self._options.host),
                rows=rows,
                deliveries=device.commands,
            )
        for line in accounting.lines:
            device.tell(line.text)
        with self._view.waiting("waiting for the device and Spark to end"):
            device.close()
            self._spark.dismiss()
        self._save(accounting)
        with self._view.waiting("waiting for the picture and the page to be drawn"):
            drawn = self._draw(rows, accounting)
        return accounting, [*device.problems(), *drawn]

    def _drain(self) -> None:
        """Process everything: a command's answer is a reading again, so repeat until the log stops growing."""
        stored = (-1, -1)
        while True:
            with self._view.waiting("waiting for the broker to acknowledge the last readings"):
                if not self._device.wait_acknowledged(DELIVERY_TIMEOUT_S):
                    return
            try:
                self._order_drain()
            except SparkFailed:
                self._keep_spark()
                continue
            following = stored_counts(self._ports.nameserver, self._options.host)
            self._await_deliveries(following[1])
            if following == stored:
                return
            stored = following

    def _order_drain(self) -> None:
        """Give the order, and keep the view alive until it is carried out."""
        failed: list[SparkFailed] = []

        def give() -> None:
            try:
                self._spark.order("drain", "drained", DRAIN_TIMEOUT_S)
            except SparkFailed as failure:
                failed.append(failure)

        order = threading.Thread(target=give, name="drain", daemon=True)
        order.start()
        while order.is_alive():
            self._tick("draining", f"Spark: {self._spark.step}")
            order.join(TICK_S)
        if failed:
            raise failed[0]

    def _await_deliveries(self, commands: int) -> None:
        deadline_s = self._moments.elapsed_s + DELIVERY_TIMEOUT_S
        while len(self._device.commands) < commands and self._moments.elapsed_s < deadline_s:
            threading.Event().wait(0.05)
            self._tick("draining")

    def _save(self, accounting: Accounting) -> None:
        """What happened when, and the accounting, for programs."""
        found = {
            "moments_s": self._moments.seconds(),
            "accounting": {line.title: line.figures for line in accounting.lines},
            "holds": accounting.holds,
            "revivals": self._spark.revivals,
            "restarts": self._spark.restarts,
            "gave_up": self._gave_up,
        }
        (self._out / "result.json").write_text(json.dumps(found, indent=2) + "\n")

    def _draw(self, rows: list[LedgerRow], accounting: Accounting) -> list[str]:
        from lightmq.demo.story import Story, draw_story, write_page

        story = Story(rows, self._device.events, accounting, self._moments, self._options.host)
        png, html = self._out / "demo.png", self._out / "demo.html"
        draw_story(png, story)
        write_page(html, story)
        return [f"picture: {shorten(png)}", f"page:    {shorten(html)}", f"logs:    {shorten(self._out)}/*.log"]


class Stopped(Exception):
    """Somebody stopped the demo before there was anything to account; the text says how far it had come."""


def shorten(path: Path) -> str:
    """A path as a person would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
