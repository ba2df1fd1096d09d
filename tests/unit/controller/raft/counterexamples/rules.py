"""Which rule of the core which script is the counterexample of: a test says so where it is written.

    @counterexample("one vote a term", Plant(...))
    def test_...

Each rule has one script and at least one plant, with which the script ends in what the rule prevents. The table of
rules in `controller/raft/README.md` has the same names (`test_rules.py`).
"""

from __future__ import annotations

from typing import Any

from remoting.protocol import voting
from tests.support.plants import FAILURES, Patch, Plant, catches

CORE, LEADING = "controller.raft.core:Raft.", "controller.raft.leading:Leading."
SCRIPTS: dict[str, Any] = {}
"""Rule -> its script."""
PLANTS: dict[str, tuple[Plant | Patch, ...]] = {}


def counterexample(rule: str, *plants: Plant | Patch, raises: Any = FAILURES) -> Any:
    """The script that shows what happens without this rule."""
    assert rule not in SCRIPTS, f"two scripts for {rule!r}"
    assert plants, f"no plant leaves {rule!r} out"

    def mark(test: Any) -> Any:
        SCRIPTS[rule], PLANTS[rule] = test, plants
        return catches(*plants, raises=raises)(test)

    return mark


def without(*answers: Any) -> Any:
    """A plant: voters do not know these rows of the table by which they judge."""

    def patch(monkeypatch: Any) -> None:
        rows = tuple(each for each in voting.VOTE_RULES if each[0] not in answers)
        monkeypatch.setattr(voting, "VOTE_RULES", rows)

    patch.__name__ = "without_" + "_".join(each.name.lower() for each in answers)
    return patch
