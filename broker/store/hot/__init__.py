"""Chooses the twin: `core` is the compiled one where it was built from the sources that are here, else the pure one.

Callers say `hot.core.encode...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins give the same bytes, numbers and refusals. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from remoting.native.choice import Choice, choose
from remoting.native.contracts import Core
from remoting.native.reference import blocks as pure_blocks
from remoting.native.reference import encoder as pure_encoder
from remoting.native.reference import keys as pure_keys
from remoting.native.reference import pen as pure_pen
from remoting.native.reference import ring as pure_ring
from remoting.native.reference import runs as pure_runs
from remoting.native.reference import scan as pure_scan
from remoting.native.reference import sort as pure_sort
from remoting.native.reference.gather import gather


def pure_core() -> Core:
    """Return the pure twin."""
    return Core(
        "pure", pure_blocks.make_block, pure_ring.Ring, pure_encoder.Encoder, pure_pen.Pen, pure_scan.scan,
        pure_scan.collect, pure_scan.survey, pure_scan.follow, pure_scan.hash_spans, pure_scan.first_bad, gather,
        pure_sort.order_by_queue, pure_sort.sort_entries, pure_keys.KeyChunk, pure_runs.RunTable,
    )  # fmt: skip


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import encoder as compiled_encoder
    from remoting.native.compiled import keys as compiled_keys
    from remoting.native.compiled import pen as compiled_pen
    from remoting.native.compiled import ring as compiled
    from remoting.native.compiled import runs as compiled_runs
    from remoting.native.compiled import scan as compiled_scan
    from remoting.native.compiled import sort as compiled_sort

    return Core(
        "compiled", compiled.make_block, compiled.Ring, compiled_encoder.Encoder, compiled_pen.Pen,
        compiled_scan.scan, compiled_scan.collect, compiled_scan.survey, compiled_scan.follow, compiled_scan.hash_spans,
        compiled_scan.first_bad, compiled_scan.gather, compiled_sort.order_by_queue, compiled_sort.sort_entries,
        compiled_keys.KeyChunk, compiled_runs.RunTable,
    )  # fmt: skip


choice: Choice[Core] = choose(compiled_core, pure_core)
"""Which twin is in use, and why."""
core: Core = choice.core
