"""One run of an example, from the command line to the exit status: server, devices, Spark, drain, claims, picture.

Invariant: whatever happens after the server is up, every child is stopped and what is known is printed. Ctrl-C ends the
story early, with claims and picture of what was told; before Spark's first batch, or pressed again, it ends all. With
`--check` the status is 0 only if every claim holds. Thread rule: the main thread.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kit.claims import Claim
from kit.stage import Example, Run, Simulation, Stage
from kit.view import Shown, View

from rich.console import Console

from lightmq.demo.driver import SparkDriver, SparkFailed
from lightmq.demo.stack import Ports, Stack, StackFailed
from runtime.clock import SystemClock

TICK_S = 0.25
SPARK_START_TIMEOUT_S = 600.0
ACKNOWLEDGE_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 900.0
"""A busy machine needs minutes to start the last query, which is waited for too."""
SERVERS = {
    "server": "a running LightMQ (its remoting port) to use instead",
    "mqtt": "its MQTT port, by default 1883 of the same host",
}
DISTURBANCES = {
    "late": "share of messages that arrive long after they were measured",
    "duplicates": "share of messages that a device sends twice",
    "out_of_order": "share of messages that overtake the one before",
    "offline": "share of devices that lose their connection for a while",
}


def run(example: Example, arguments: Sequence[str] | None = None) -> int:
    """Run an example; return the exit status. Spark's process starts here too, with `--driver`."""
    options = parse(example, arguments)
    if options.driver:
        from kit.driver import drive

        return drive(example, Stage.load(options.driver))
    return Play(example, options).run()


def parse(example: Example, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with a message on unknown options."""
    parser = argparse.ArgumentParser(
        prog=f"examples/{example.name}.py",
        description=example.headline,
        epilog="Nothing else has to run: a server of its own is started and stopped. Ctrl-C ends the story early.",
    )

    def add(name: str, kind: Callable[[str], object], default: object, meaning: str) -> None:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=f"{meaning} (%(default)s)")

    add("seconds", float, example.seconds, "how long the story is told")
    add("speed", float, example.speed, "seconds of the story in one of them")
    add("seed", int, 1, "another seed gives another story")
    add("out", Path, Path("example-out") / example.name, "folder for rows, logs and the picture")
    parser.add_argument("--headless", action="store_true", help="lines instead of the live view")
    parser.add_argument("--check", action="store_true", help="end with status 1 if a claim does not hold")
    parser.add_argument("--stay", action="store_true", help="keep the server up at the end, until Ctrl-C")
    for name, meaning in SERVERS.items():
        parser.add_argument(f"--{name}", type=address, metavar="HOST:PORT", help=meaning)
    for name, share in (example.disturbances or {}).items():
        add(name, float, share, DISTURBANCES[name])
    for name, (default, meaning) in (example.arguments or {}).items():
        add(name, str, default, meaning)
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.seconds <= 0 or chosen.speed <= 0:
        parser.error("--seconds and --speed must be above 0")
    return chosen


def address(text: str) -> tuple[str, int]:
    """Host and port of an option."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) not in range(1, 65_536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


class Play:
    """One run of one example."""

    def __init__(self, example: Example, options: argparse.Namespace) -> None:
        self._example, self._options = example, options
        self._out: Path = options.out.resolve()
        self._console = Console()
        self._view = View(self._console, headless=options.headless)
        self._clock = SystemClock()
        self._begun_ns = self._clock.monotonic_ns()
        self._interrupted = threading.Event()
        servers = example.servers or Stack
        self._stack = None if options.server else servers(self._out / "data")
        self._ports: Ports | None = None
        self._shown = Shown(example.name)
        self._spark_failure = ""
        self._play: Run | None = None
        self._restarts_told = 0
        self._counted = (0.0, 0)

    def run(self) -> int:
        """Run it; 0 unless something failed, or a claim does not hold and `--check` was given."""
        self._listen(self._interrupt)
        try:
            self._prepare_folder()
            with self._view:
                play = self._set_up()
                claims = self._tell(play)
            self._print_claims(claims)
            self._print_rest(self._draw(play, claims))
            if self._options.stay and self._stack is not None:
                self._console.print("The server stays up until Ctrl-C.")
                self._interrupted.wait()
            return self._status(claims)
        except KeyboardInterrupt:
            self._console.print(f"{self._example.name} was interrupted before its end")
            return 130
        except (StackFailed, OSError, RuntimeError) as failure:
            self._console.print(f"{self._example.name} failed: {failure}", markup=False, highlight=False)
            return 1
        finally:
            self._listen(signal.SIG_IGN)
            if self._play is not None and self._play.spark is not None:
                self._play.spark.stop()
            if self._stack is not None:
                self._stack.stop()
            shutil.rmtree(self._out / "data", ignore_errors=True)

    def _listen(self, to: Any) -> None:
        """Let Ctrl-C, and what asks a process to end, call this from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, to)

    def _interrupt(self, *_: object) -> None:
        """End the story early, with claims and picture of what was told; the second time, end at once."""
        if self._interrupted.is_set():
            self._end_at_once()
        self._interrupted.set()

    def _end_at_once(self) -> NoReturn:
        """Leave nothing running. What is pressed once more must not stop that."""
        self._listen(signal.SIG_IGN)
        raise KeyboardInterrupt

    def _status(self, claims: list[Claim]) -> int:
        if self._spark_failure:
            return 1
        return 1 if self._options.check and not all(claim.holds for claim in claims) else 0

    def _prepare_folder(self) -> None:
        """Replace an earlier run in this folder; a folder with anything else in it is left alone."""
        if self._out.exists() and any(self._out.iterdir()) and not (self._out / "stage.json").exists():
            raise RuntimeError(f"{self._out} has other files in it; name an empty or new folder with --out")
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir(parents=True)
        (self._out / "stage.json").write_text("{}")

    def _set_up(self) -> Run:
        """Bring up the server and the devices, and start Spark beside them."""
        self._view.note(self._example.headline)
        stage = self._stage()
        stage.save()
        devices = self._example.devices(stage)
        play = self._play = Run(
            stage, devices, self._stack, None, self._view.note, lambda: self._start_spark(play), self._restart_server
        )
        if self._example.queries is not None:
            self._start_spark(play)
        devices.start()
        return play

    def _stage(self) -> Stage:
        options = self._options
        if self._stack is None:
            host, port = options.server
            server, mqtt, from_ms = f"{host}:{port}", options.mqtt or (host, 1883), self._clock.now_ms()
        else:
            ports = self._ports = self._stack.start(processes=False)
            server = ";".join(f"127.0.0.1:{port}" for port in (ports.nameserver, *ports.others))
            mqtt, from_ms = ("127.0.0.1", ports.mqtt), 0
            self._view.note(f"server is up: mqtt {ports.mqtt}, remoting {ports.nameserver}")
            for topic_filter in self._example.filters:
                self._view.note(f"console: {ports.console_link(topic_filter)}")
        return Stage(
            server=server, mqtt_host=mqtt[0], mqtt_port=mqtt[1], out=str(self._out), from_ms=from_ms,
            seconds=options.seconds, speed=options.speed, seed=options.seed,
            options={name: getattr(options, name) for name in self._example.disturbances or {}},
            words={name: getattr(options, name) for name in self._example.arguments or {}},
        )  # fmt: skip

    def _restart_server(self) -> None:
        assert self._stack is not None
        assert self._ports is not None
        self._stack.start(processes=False, ports=self._ports)

    def _start_spark(self, play: Run) -> None:
        """Start Spark's process: this very script, with the stage as its argument."""
        here = Path(__file__).resolve().parents[1]
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(here), str(here.parent), *(one for one in known if one and one not in {str(here), str(here.parent)})]
        )
        number = len(list(self._out.glob("spark*.log")))
        log = self._out / (f"spark-{number + 1}.log" if number else "spark.log")
        play.spark = SparkDriver(log, (sys.argv[0],))
        self._restarts_told = 0
        play.spark.start(["--driver", str(play.stage.folder("stage.json"))])

    def _tell(self, play: Run) -> list[Claim]:
        """Run the story to its end, let Spark process all of it, and judge."""
        try:
            self._await_spark_if_live(play)
            self._run_story(play)
            if self._interrupted.is_set():
                self._end_early(play)
        except SparkFailed as failure:
            self._give_up(failure)
        play.devices.stop()
        self._tick(play, "draining")
        if not play.devices.settle(ACKNOWLEDGE_TIMEOUT_S):
            self._view.note("some messages were not acknowledged: see the claims")
        if play.spark is not None:
            try:
                if not self._spark_failure:
                    self._order(play, "drain", "drained")
                    self._order(play, "batch", "batch done")
            except SparkFailed as failure:
                self._give_up(failure)
            play.spark.stop()
        self._tick(play, "done")
        if self._spark_failure:
            return [Claim("Spark read everything", self._spark_failure, holds=False)]
        return self._example.check(play)

    def _end_early(self, play: Run) -> None:
        """After Ctrl-C: go on to the claims if there is something to judge. Raises KeyboardInterrupt if not."""
        if play.spark is not None and not play.spark.count_of("ready"):
            self._end_at_once()
        self._view.note("the story ends early, its claims and its picture follow; Ctrl-C once more ends all at once")

    def _give_up(self, failure: SparkFailed) -> None:
        self._spark_failure = str(failure)
        self._view.note(f"Spark gave up: {failure}")

    def _order(self, play: Run, word: str, answer: str) -> None:
        """Give Spark's process an order and keep the view alive until it has answered."""
        assert play.spark is not None
        failed: list[SparkFailed] = []

        def send(spark: SparkDriver) -> None:
            try:
                spark.order(word, answer, DRAIN_TIMEOUT_S)
            except SparkFailed as failure:
                failed.append(failure)

        sender = threading.Thread(target=send, args=(play.spark,), daemon=True)
        sender.start()
        while sender.is_alive():
            self._tick(play, "draining")
            sender.join(TICK_S)
        if failed:
            raise failed[0]

    def _await_spark_if_live(self, play: Run) -> None:
        begun_s = self._elapsed_s()
        while self._example.live and play.spark is not None and not play.spark.is_warm:
            if self._interrupted.wait(TICK_S):
                return
            play.spark.check()
            self._tick(play, "starting")
            if self._elapsed_s() - begun_s > SPARK_START_TIMEOUT_S:
                raise SparkFailed(f"Spark did not start in {SPARK_START_TIMEOUT_S:.0f} s")

    def _run_story(self, play: Run) -> None:
        devices: Simulation = play.devices
        begun_s = self._elapsed_s()
        while not devices.finished() and not self._interrupted.wait(TICK_S):
            told_s = self._elapsed_s() - begun_s
            play.live_s = told_s
            self._shown.share = told_s / play.stage.seconds
            goes_on = self._example.during is not None and self._example.during(play)
            if self._example.live and told_s >= play.stage.seconds and not goes_on:
                return
            if play.spark is not None:
                play.spark.check()
            self._tick(play, "running")

    def _elapsed_s(self) -> float:
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9

    def _tick(self, play: Run, phase: str) -> None:
        shown, now_s = self._shown, self._elapsed_s()
        shown.phase, shown.elapsed_s = phase, now_s
        shown.sent, shown.acknowledged = play.devices.sent, play.devices.acknowledged
        shown.figures = play.devices.figures()
        before_s, before = self._counted
        if now_s - before_s >= 1:
            shown.rates.append((shown.acknowledged - before) / (now_s - before_s))
            self._counted = (now_s, shown.acknowledged)
        if play.spark is not None:
            shown.queries, shown.spark = dict(play.spark.progress), play.spark.step
            for text in play.spark.restarts[self._restarts_told :]:
                self._restarts_told += 1
                self._view.note(text)
        self._view.show(shown)

    def _draw(self, play: Run, claims: list[Claim]) -> Path | None:
        if self._spark_failure:
            return None
        page = self._example.picture(play, claims)
        path = self._out / f"{self._example.name}.png"
        held = sum(claim.holds for claim in claims)
        page.save(
            path, f"LightMQ · {play.devices.acknowledged:,} messages over MQTT, one log, Spark · "
            f"{held} of {len(claims)} claims hold · python examples/{self._example.name}.py --seed {play.stage.seed}",
        )  # fmt: skip
        return path

    def _print_claims(self, claims: list[Claim]) -> None:
        self._console.rule("claims")
        for claim in claims:
            mark = "holds" if claim.holds else "DOES NOT HOLD"
            style = "green" if claim.holds else "bold red"
            self._console.print(
                f"{claim.title}: {claim.figures}  ", end="", markup=False, highlight=False, soft_wrap=True
            )
            self._console.print(mark, style=style, highlight=False)

    def _print_rest(self, picture: Path | None) -> None:
        if picture is not None:
            for path in (picture, *sorted(self._out.glob("*.html"))):
                title = "picture" if path == picture else "page"
                self._console.print(f"{title}: {shorten(path)}", highlight=False, soft_wrap=True)
        took = f"took {self._elapsed_s():.0f} s; rows and logs: {shorten(self._out)}"
        self._console.print(took, highlight=False, soft_wrap=True)


def shorten(path: Path) -> str:
    """Return a path as a person would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
