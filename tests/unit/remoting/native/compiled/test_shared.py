"""Cython's support code is compiled once; without sharing every module with memory views carries 200 KB of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

shared = pytest.importorskip("remoting.native.compiled.shared", reason="not compiled", exc_type=ImportError)
compiled = pytest.importorskip("remoting.native.compiled.columns", reason="not compiled", exc_type=ImportError)
MEMORY_VIEW_SUPPORT = b"Buffer dtype mismatch"
"""A message of Cython's checks of a buffer, which is in the extension that has their code."""

if Path(shared.__file__).suffix == ".py":
    pytest.skip("not compiled", allow_module_level=True)


def test_modules_with_memory_views_import_it() -> None:
    """It is loaded with the first module that uses memory views, whatever imports that."""
    script = "import sys, remoting.native.compiled.columns; print('remoting.native.compiled.shared' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"


def test_its_code_is_in_no_other_extension() -> None:
    """Neither is that of the checks, which are most of it."""
    assert MEMORY_VIEW_SUPPORT in Path(shared.__file__).read_bytes()
    assert MEMORY_VIEW_SUPPORT not in Path(compiled.__file__).read_bytes()
