"""The options of the demo's command line; a frozen value afterwards.

Invariant: every option has a default that runs on any machine.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
        "--out", type=Path, default=Path("demo-out"), help="folder for data, checkpoints and charts (made anew)"
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of the live view")
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
    )
