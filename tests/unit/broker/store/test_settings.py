"""Settings that cannot work are refused by name."""

from __future__ import annotations

import pytest

from broker.store.settings import StoreSettings
from remoting.protocol.errors import LocalMisuse


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size_bytes", 100),
        ("segment_size_bytes", 1 << 31),
        ("segment_size_bytes", 4097),
        ("first_segment_size_bytes", 4095),
        ("first_segment_size_bytes", 4100),
        ("flush", "never"),
        ("index_tail_entries", 4),
        ("index_flush_entries", 200_000),
        ("index_merge_runs", 1),
        ("retention_size_bytes", 3 * 2 * 5 * 1024 * 1024 - 1),
    ],
)
def test_nonsense_is_refused(name: str, value: object) -> None:
    """The message names the setting."""
    with pytest.raises(LocalMisuse, match="index_tail_entries" if "entries" in name else name):
        StoreSettings(**{name: value})


def test_derived_limits() -> None:
    """A record fits twice into a segment; half a tail makes a run."""
    settings = StoreSettings(segment_size_bytes=4096, index_tail_entries=100)
    assert (settings.record_limit_bytes, settings.flush_entries) == (2048, 50)
    assert settings.first_file_bytes == 4096
    assert StoreSettings(record_size_bytes_max=1003, first_segment_size_bytes=4096).first_file_bytes == 4096
    assert StoreSettings(record_size_bytes_max=4001, first_segment_size_bytes=4096).first_file_bytes == 8008
    assert StoreSettings(index_flush_entries=7).flush_entries == 7


def test_a_small_log_has_small_files() -> None:
    """An eighth of its limit, but room for two of the largest records."""
    mib = 1024 * 1024
    assert StoreSettings().largest_file_bytes == 256 * mib
    assert StoreSettings(retention_size_bytes=32 * mib).largest_file_bytes == 10 * mib
    assert StoreSettings(retention_size_bytes=800 * mib).largest_file_bytes == 100 * mib
    assert StoreSettings(retention_size_bytes=100_000 * mib).largest_file_bytes == 256 * mib
