"""Chooses the twin: `core` is the compiled one where it was built from the sources that are here, else the pure one.

Callers say `hot.core.messages...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins do the same. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.store.store_message import StoreMessage
from remoting import TYPED
from remoting.native.choice import Choice, choose
from remoting.native.reference import intake as pure_intake
from remoting.transport.direct import PlainRun


@dataclass(frozen=True, slots=True)
class Core:
    """What one twin offers, compiled or in Python: the same calls with the same results."""

    name: str
    messages: Callable[
        [
            Sequence[PlainRun],
            Mapping[bytes, tuple[int, ...]],
            Callable[[bytes], tuple[int, ...]],
            Callable[[int, int], Exception],
            int,
            int,
        ],
        list[StoreMessage],
    ]
    """(runs, topic -> queue ids, the same for topics not in there, what to raise for body and properties of such sizes,
    most bytes of a body, most bytes of properties) -> messages. Raises LocalMisuse for names too long for a record."""


def pure_core() -> Core:
    """Return the pure twin."""
    return Core("pure", pure_intake.messages)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import intake as compiled_intake

    return Core("compiled", compiled_intake.messages)


choice: Choice[Core] = choose(compiled_core, pure_core, TYPED.reason)
"""Which twin is in use, and why."""
core: Core = choice.core
