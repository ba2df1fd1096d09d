"""The MANIFEST of the key index survives and is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.keys.key_manifest import NAME, KeyManifest, load_key_manifest, save_key_manifest
from broker.store.log.sealed_json import sealed_json


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """None before the first one."""
    assert load_key_manifest(tmp_path) is None
    manifest = KeyManifest(next_file_id=9, end_position=4096, runs=(3, 8))
    save_key_manifest(tmp_path, manifest)
    assert load_key_manifest(tmp_path) == manifest


@pytest.mark.parametrize("content", [b"{}\nbad\n", sealed_json({"runs": [1]}), sealed_json({"runs": 5})])
def test_an_unreadable_one_is_told(tmp_path: Path, content: bytes) -> None:
    """A wrong checksum, a missing member, a member of another kind."""
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(CorruptIndex):
        load_key_manifest(tmp_path)
