"""Chooses the twin: `core` is the compiled one where it was built from the sources that are here, else the pure one.

Callers say `hot.core.encode...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins give the same bytes, numbers and refusals. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from pathlib import Path

from broker import TYPED
from broker.store.gather import gather
from broker.store.hot import pure_blocks, pure_encoder, pure_keys, pure_pen, pure_ring, pure_runs, pure_scan, pure_sort
from broker.store.hot.contracts import Core
from remoting.hot.choice import Choice, choose

MODULES = (
    "compiled", "compiled_encoder", "compiled_pen", "compiled_scan", "compiled_keys", "compiled_runs", "compiled_sort",
)  # fmt: skip


def pure_core() -> Core:
    """Return the pure twin."""
    return Core(
        "pure", pure_blocks.make_block, pure_ring.Ring, pure_encoder.Encoder, pure_pen.Pen, pure_scan.scan,
        pure_scan.collect, pure_scan.survey, pure_scan.follow, pure_scan.hash_spans, pure_scan.first_bad, gather,
        pure_scan.order_by_queue, pure_sort.sort_entries, pure_keys.KeyChunk, pure_runs.RunTable,
    )  # fmt: skip


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from broker.store.hot import (
        compiled,
        compiled_encoder,
        compiled_keys,
        compiled_pen,
        compiled_runs,
        compiled_scan,
        compiled_sort,
    )

    return Core(
        "compiled", compiled.make_block, compiled.Ring, compiled_encoder.Encoder, compiled_pen.Pen,
        compiled_scan.scan, compiled_scan.collect, compiled_scan.survey, compiled_scan.follow, compiled_scan.hash_spans,
        compiled_scan.first_bad, compiled_scan.gather, compiled_scan.order_by_queue, compiled_sort.sort_entries,
        compiled_keys.KeyChunk, compiled_runs.RunTable,
    )  # fmt: skip


choice: Choice[Core] = choose(Path(__file__).parent, MODULES, compiled_core, pure_core, TYPED.reason)
"""Which twin is in use, and why."""
core: Core = choice.core
