"""Chooses the twin: `core` is the compiled one if it was built from the present sources, else the reference.

Callers write `native.core.scan`, so that tests and benchmarks can replace `core`. LIGHTMQ_PURE=1 chooses the
reference. Invariant: both twins give the same bytes, numbers and refusals. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from remoting.native.choice import Choice, choose
from remoting.native.contracts import Core
from remoting.native.reference import delays, encoder, images, rocketmq, runs, scan


def pure_core() -> Core:
    """Return the reference, in plain Python."""
    return Core(
        "pure", encoder.make_block, encoder.Ring, encoder.Encoder, encoder.SegmentWriter, scan.scan, scan.collect,
        scan.record_end, scan.survey, scan.follow, scan.hash_spans, scan.topic_keys, scan.first_bad, scan.gather,
        runs.order_by_queue, runs.sort_entries, scan.KeyChunk, runs.RunTable,
        images.placed, images.topics, images.hidden, images.shown, delays.DueSpan, delays.DueHeap, delays.staged_images,
        rocketmq.stored, rocketmq.count_batch, rocketmq.sent, rocketmq.message_ids,
    )  # fmt: skip


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError if it was not built."""
    from remoting.native.compiled import delays, encoder, images, ring, rocketmq, runs, scan

    return Core(
        "compiled", ring.make_block, ring.Ring, encoder.Encoder, encoder.SegmentWriter, scan.scan, scan.collect,
        scan.record_end, scan.survey, scan.follow, scan.hash_spans, scan.topic_keys, scan.first_bad, scan.gather,
        runs.order_by_queue, runs.sort_entries, scan.KeyChunk, runs.RunTable,
        images.placed, images.topics, images.hidden, images.shown, delays.DueSpan, delays.DueHeap, delays.staged_images,
        rocketmq.stored, rocketmq.count_batch, rocketmq.sent, rocketmq.message_ids,
    )  # fmt: skip


choice: Choice[Core] = choose(compiled_core, pure_core)
"""The twin in use, and the reason."""
core: Core = choice.core
