"""The settings of the store, in one declared table.

Invariant: a StoreSettings that exists is consistent; `validate` runs at construction. Thread rule: frozen values.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX
from runtime.config import setting

MIB = 1024 * 1024
SEGMENT_SIZE_BYTES_MIN = 4096
SEGMENT_SIZE_BYTES_MAX = 2**31 - 8
"""Offsets into one mapped segment must fit the signed 32-bit views of Arrow."""
FILES_MIN = 3
"""Files of the smallest log: the oldest, the one being written, and the one prepared to follow it."""
FILES_WANTED = 8
"""Of so many files a log with a limit of its size consists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The log: files, flushing, indexes, retention, damage."""

    segment_size_bytes: int = 256 * MIB
    """Size of one log file, a multiple of 8. Existing files keep theirs. Smaller ones expire in finer steps; with
    retention_size_bytes they are an eighth of that at most."""

    first_segment_size_bytes: int = 8 * MIB
    """Size of the first log file, at least two of the largest records. Each further one is as large as all before it
    together, up to segment_size_bytes, so that a small log takes little of the disk."""

    record_size_bytes_max: int = 5 * MIB
    """Largest record taken, headers included; a larger one is refused. At most half a segment."""

    flush: str = "sync"
    """`sync`: a message is confirmed when fdatasync has returned. `async`: once it is in the page cache."""

    flush_interval_ms: int = 500
    """With flush = "async": the longest time a written record may stay unflushed."""

    index_tail_entries: int = 262_144
    """Index entries held in the shared tail file; half of them make one run. More memory, fewer and larger runs."""

    index_flush_entries: int = 0
    """Entries that start the writing of a run; 0 means half of index_tail_entries."""

    index_merge_runs: int = 8
    """This many neighbouring runs of one size class are merged into one."""

    index_merge_entries_max: int = 16_777_216
    """A merge never makes a run with more entries than this, so that retention can drop whole runs."""

    key_index: bool = True
    """Find messages by topic and key. Without it appends with keys cost less and the disk holds 20 bytes less per key;
    switched on again, the index is built from the log at the next start."""

    key_index_entries: int = 131_072
    """Keys held in memory (20 bytes each) until they become a run of the key index; at least 64."""

    retention_ms: int = setting(3 * 24 * 3600 * 1000, minimum=0, live=True)
    """Segments whose newest record is older go away; 0 keeps everything."""

    retention_size_bytes: int = setting(0, minimum=0, live=True)
    """The oldest log files go while all of them together, with those being written and prepared, are larger than this;
    0 means no limit by size. At least three files that take two of the largest records each. State that is still valid
    (queues, sessions, retained messages ...) is kept whatever its size: where it takes more than half of this, the
    broker reports it (`rocketmq_retention_state_bytes`, `/readyz`) and keeps twice as much."""

    expire_when_full: bool = setting(False, live=True)
    """When free space is below the floor, let the oldest segment go before its time and take messages again. With false
    nothing goes early and messages are refused until there is room."""

    snapshot_log_bytes: int = 256 * MIB
    """Log written between two snapshots of the state tables; it bounds the replay at the next start. With much state it
    is four times the size of a snapshot instead, when that is more."""

    free_space_bytes_min: int = 256 * MIB
    """Free-space floor of the disk: below it appends are refused, while reads and deletes of state continue."""

    ballast_size_bytes: int = 16 * MIB
    """A file given back to the file system when it runs full, so that the broker can still write its own metadata.
    While the log files take less than four times as much, it is a sixteenth of that."""

    check_on_read: bool = True
    """Verify the checksum of every record read, so that rot on the disk is reported instead of delivered. Records of a
    range are verified by who asked for it, in any case."""

    damage_policy: str = "quarantine"
    """What a start does with damage below the durable position. `quarantine`: leave those bytes alone, report them and
    serve everything else. `refuse`: do not start, so that a person decides first."""

    scrub_bytes_per_second: int = 16 * MIB
    """How fast the whole log is read again in the background and its checksums are compared, from each start on and
    then once a day, so that damage is found before the messages are needed. 0: never. A replica is not slowed down."""

    carry_entries_max: int = 1_000
    """State entries carried forward per step of the upkeep while a segment expires; bounds the time of one step."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting."""
        size = self.segment_size_bytes
        if not SEGMENT_SIZE_BYTES_MIN <= size <= SEGMENT_SIZE_BYTES_MAX or size % 8:
            raise LocalMisuse(
                f"segment_size_bytes must be a multiple of 8 from 4096 to {SEGMENT_SIZE_BYTES_MAX}, not {size}"
            )
        first = self.first_segment_size_bytes
        if first < SEGMENT_SIZE_BYTES_MIN or first % 8:
            raise LocalMisuse(
                f"first_segment_size_bytes must be a multiple of 8, at least {SEGMENT_SIZE_BYTES_MIN}, not {first}"
            )
        self._check_retention_size()
        if self.scrub_bytes_per_second < 0:
            raise LocalMisuse(f"scrub_bytes_per_second must be 0 or more, not {self.scrub_bytes_per_second}")
        if self.flush not in {"sync", "async"}:
            raise LocalMisuse(f'flush must be "sync" or "async", not "{self.flush}"')
        if self.damage_policy not in {"quarantine", "refuse"}:
            raise LocalMisuse(f'damage_policy must be "quarantine" or "refuse", not "{self.damage_policy}"')
        if self.index_tail_entries < 16 or self.index_flush_entries > self.index_tail_entries // 2:
            raise LocalMisuse("index_tail_entries must be at least 16, and at least twice index_flush_entries")
        if self.key_index_entries < KEYS_PER_RECORD_MAX:
            raise LocalMisuse(f"key_index_entries must be at least {KEYS_PER_RECORD_MAX}, not {self.key_index_entries}")
        if self.index_merge_runs < 2:
            raise LocalMisuse(f"index_merge_runs must be at least 2, not {self.index_merge_runs}")

    def _check_retention_size(self) -> None:
        smallest = self.smallest_file_bytes
        if 0 < self.retention_size_bytes < FILES_MIN * smallest:
            raise LocalMisuse(
                f"retention_size_bytes {self.retention_size_bytes} is too small: a log has {FILES_MIN} files (the "
                "oldest, the one being written, the next one), and with record_size_bytes_max "
                f"{self.record_size_bytes_max} and segment_size_bytes {self.segment_size_bytes} each takes at least "
                f"{smallest} bytes; set it to {FILES_MIN * smallest} or more, or lower the others"
            )

    @property
    def record_limit_bytes(self) -> int:
        """Largest record that is really taken: the configured one, or half a segment."""
        return min(self.record_size_bytes_max, self.segment_size_bytes // 2)

    @property
    def smallest_file_bytes(self) -> int:
        """Size of the smallest log file there can be: two of the largest records."""
        return min(2 * self.record_limit_bytes + 7 & ~7, self.segment_size_bytes)

    @property
    def largest_file_bytes(self) -> int:
        """Size that log files really grow to: a small log has small files, so that they expire in time."""
        if not self.retention_size_bytes:
            return self.segment_size_bytes
        share = self.retention_size_bytes // FILES_WANTED & ~7
        return min(self.segment_size_bytes, max(share, self.smallest_file_bytes))

    @property
    def first_file_bytes(self) -> int:
        """Size that the first log file really has."""
        return min(max(self.first_segment_size_bytes, self.smallest_file_bytes), self.largest_file_bytes)

    @property
    def flush_entries(self) -> int:
        """Tail entries that make one run."""
        return self.index_flush_entries or self.index_tail_entries // 2
