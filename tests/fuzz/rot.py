"""Damage below the durable point: it is reported, nothing is cut, and everything else stays readable.

It is done to copies of a lane's directory: one for a start that refuses damage, one that lives on with it through two
starts and a rebuild of everything that is derived from the log.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.store.inspection.verifier import verify
from tests.fuzz.damage import KINDS, Damage, hurt, image
from tests.fuzz.victim import Orders
from tests.sim.log_judge import Seen, proved_durable, read_log

Words = list[list[Any]]
Live = Callable[[Path, Orders], Words]


class Rot:
    """One damage; `live` runs a process with orders on a directory and returns its output."""

    def __init__(self, directory: Path, chance: random.Random, orders: Orders, live: Live) -> None:
        self._directory = directory
        self._live = live
        self._chance = chance
        self._orders = replace(orders, read_only=True, settings={**orders.settings, "retention_size_bytes": 0})

    def run(self, ends: dict[int, int]) -> str:
        """Damage and judge; `ends` are queue ends that readers have seen. Return the outcome, "" for no damage done."""
        records = read_log(self._directory)
        durable = proved_durable(self._directory)
        if not records or durable <= records[0].position:
            return ""
        # Not beside the lane, which may lie on a disk that is full.
        place = Path(tempfile.mkdtemp(prefix="crash-fuzz-rot-", dir=self._directory.parent.parent))
        copy = place / "data"
        shutil.copytree(self._directory, copy)
        high = min(durable, records[-1].end)
        damage = hurt(copy, self._chance, records[0].position, high, self._chance.choice(KINDS))
        said = ""
        if damage is not None and (damage.kind != "zero" or damage.former.strip(b"\0")):
            assert verify(copy).errors, f"verify does not see {damage}"
            said = self._refused(copy, damage)
            if said:
                self._salvaged(copy, records, durable, damage, ends)
        shutil.rmtree(place)  # a failure keeps it
        return said

    def _refused(self, copy: Path, damage: Damage) -> str:
        """A start with the policy to refuse changes no byte of the log; "" when the disk is full."""
        before = image(copy, 1 << 62)
        refusing = copy.with_name("rot-refused")
        shutil.copytree(copy, refusing)
        orders = replace(self._orders, settings={**self._orders.settings, "damage_policy": "refuse"})
        said = self._live(refusing, orders)[0][0]
        if said == "corrupt":
            assert image(refusing, 1 << 62) == before, f"{damage}: a refused start changed the log"
        assert said in ("corrupt", "read", "refused"), said
        shutil.rmtree(refusing)
        return "" if said == "refused" else str(said)

    def _salvaged(self, copy: Path, records: list[Seen], durable: int, damage: Damage, ends: dict[int, int]) -> None:
        """With the policy to quarantine: two lives, then one from the log alone."""
        hurt_image = image(copy, durable)
        sound = [seen for seen in records if seen.end <= damage.position or seen.position >= damage.end]
        whole = [seen for seen in sound if seen.end <= durable]
        appended: list[list[int]] = []
        epoch = 0
        for life in ("first", "second", "from the log"):
            if life == "from the log":
                shutil.rmtree(copy / "index")
                shutil.rmtree(copy / "state", ignore_errors=True)
            words = self._live(copy, self._orders)
            if words[0][0] == "refused":
                return  # the disk is full
            assert words[0][0] == "read", (life, damage, words[0][:2])
            told = words[0][1]
            judge_survey(life, told, whole, appended, {} if life == "from the log" else ends)
            now = image(copy, durable)
            assert all(now[base][: len(data)] == data for base, data in hurt_image.items()), (
                f"{life}: the log was changed"
            )
            assert told["epoch"] > epoch
            epoch = told["epoch"]
            assert words[1][0] == "appended", words[1]
            appended += words[1][1]
            # A part that no start has scanned is known only as far as it was read; the index contains no state.
            known = {"metadata"} if life == "from the log" else {"metadata", "log"}
            errors = [found for found in verify(copy).errors if found.check not in known]
            assert not errors, (life, damage, errors[:3])


def judge_survey(
    life: str, told: dict[str, Any], whole: list[Seen], appended: list[list[int]], ends: dict[int, int]
) -> None:
    """Everything undamaged is read at its own offset, the rest is named, and no offset is used twice."""
    places: dict[int, dict[int, int]] = {}
    for seen in whole:
        for queue, offset in seen.dispatch:
            places.setdefault(queue, {})[offset] = seen.position
    for key, (low, high, found, missing) in told["queues"].items():
        queue = int(key)
        meant = {offset: position for offset, position in places.get(queue, {}).items() if offset >= low}
        read = dict(found)
        lost = sorted(meant.items() - read.items())
        assert not lost, (life, queue, lost[:3], low, high, missing, told["quarantined"])
        if meant:
            assert low <= min(meant), (queue, low)
        assert high >= ends.get(queue, 0), f"offsets of {queue} went back to {high} from {ends[queue]}"
        spans = sorted([offset for offset, _ in found] + [first for first, _ in missing])
        assert spans[:1] == [low][: len(spans)], (queue, low, spans[:3])
        assert len(set(spans)) == len(spans), (queue, "offsets twice")
    known = {int(key) for key in told["queues"]}
    offsets = {(int(key), offset) for key, (_, _, found, _) in told["queues"].items() for offset, _ in found}
    for queue, offset in appended:
        assert queue in known, queue
        assert (queue, offset) in offsets, (queue, offset)
