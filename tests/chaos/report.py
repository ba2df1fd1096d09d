"""The report of a run: text for people, JSON for machines, the picture beside them.

Pure but for `write`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.judges import Verdict
from tests.chaos.ledger import Ledger
from tests.chaos.timeline import picture


@dataclass
class Report:
    """The result of a run."""

    seed: int
    network: str
    nodes: dict[str, str]
    seconds: float
    command: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    acknowledged: int = 0
    sent: int = 0
    rates: list[int] = field(default_factory=list)
    back_s: dict[str, list[float]] = field(default_factory=dict)
    """Kind and role -> seconds from the fault to the first acknowledged message handed over after it."""

    @property
    def passed(self) -> bool:
        """Every judge passed and nothing else went wrong."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts) and not self.problems

    def measure(self, ledgers: Sequence[Ledger]) -> None:
        """Counts, rates and the time without writes, from what was sent."""
        self.sent = sum(len(ledger.sent) for ledger in ledgers)
        self.acknowledged = sum(ledger.count for ledger in ledgers)
        seconds = Counter(int(at) for ledger in ledgers for at in ledger.acknowledged if not math.isnan(at))
        self.rates = [seconds[at] for at in range(int(self.seconds) + 1)]
        for fault in self.faults:
            found = [back for ledger in ledgers if (back := ledger.back_after(fault["at"])) is not None]
            if found:
                roles = sorted({self.nodes[name] for name in fault["targets"]})
                self.back_s.setdefault(f"{fault['kind']} {'+'.join(roles)}", []).append(round(max(found), 3))

    def text(self) -> str:
        """For people."""
        kinds = Counter(fault["kind"] for fault in self.faults)
        passed, where = "PASSED" if self.passed else "FAILED", f"{self.network}, {len(self.nodes)} processes"
        mean, good = self.acknowledged / max(self.seconds, 1), percentile(self.rates, 0.9)
        rates = f"{mean:.0f} per second over the whole run, {good:.0f} in a good one"
        lines = [
            f"{passed}: {len(self.faults)} faults in {self.seconds:.0f} s, {where}, seed {self.seed}",
            f"faults: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}",
            f"load: {self.acknowledged} of {self.sent} messages acknowledged, {rates}",
            "",
        ]
        for verdict in self.verdicts:
            counts = ", ".join(f"{name} {count}" for name, count in verdict.counts.items())
            lines.append(f"{'ok  ' if verdict.passed else 'FAIL'} {verdict.judge}: {verdict.checked} checked, {counts}")
            lines += [f"       {text}" for text in verdict.violations]
        lines += [f"FAIL {problem}" for problem in self.problems]
        lines += ["", "seconds until a message handed over after the fault was acknowledged (slowest source)"]
        for kind, found in sorted(self.back_s.items()):
            lines.append(f"  {kind:<28}{len(found):>4} x   p50 {percentile(found, 0.5):6.2f}   max {max(found):6.2f}")
        return "\n".join([*lines, "", f"again: {self.command}", ""])

    def write(self, folder: Path) -> None:
        """report.txt, report.json and timeline.svg."""
        (folder / "report.txt").write_text(self.text())
        content = {**asdict(self), "passed": self.passed}
        (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
        title = f"acknowledged messages per second, {len(self.faults)} faults, seed {self.seed}"
        (folder / "timeline.svg").write_text(picture(self.faults, self.rates, list(self.nodes), self.seconds, title))


def percentile(values: Sequence[float], share: float) -> float:
    """The quantile of the values for this share; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
