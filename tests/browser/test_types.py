"""TypeScript checks the console's modules, and what lies in its vendor folder is what npm has. Slow: needs npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.tree import ROOT

HERE = Path(__file__).parent
VENDOR = ROOT / "console" / "static" / "vendor"
FILES = {
    "htm/standalone.module.js": "htm/preact/standalone.module.js",
    "htm/LICENSE": "htm/LICENSE",
    "htm/LICENSE.preact": "preact/LICENSE",
    "uplot/uPlot.esm.js": "uplot/dist/uPlot.esm.js",
    "uplot/uPlot.min.css": "uplot/dist/uPlot.min.css",
    "uplot/uPlot.esm.d.ts": "uplot/dist/uPlot.d.ts",
    "uplot/LICENSE": "uplot/LICENSE",
}
INSTALL_SECONDS_MAX = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_SECONDS_MAX + 120)]


@pytest.fixture(scope="module")
def packages() -> Path:
    """The packages that `package.json` names, installed beside it once."""
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: apt-get install npm")
    folder = HERE / "node_modules"
    wanted = json.loads((HERE / "package.json").read_text())["devDependencies"]
    there = {
        name: json.loads((folder / name / "package.json").read_text())["version"]
        for name in wanted
        if (folder / name / "package.json").exists()
    }
    if there != wanted:
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
        if done.returncode != 0:
            pytest.skip(f"npm could not install TypeScript: {done.stderr.strip()[-200:]}")
    return folder


def test_the_modules_have_the_types_that_they_state(packages: Path) -> None:
    """Strictly, from the JSDoc comments."""
    done = subprocess.run([packages / ".bin" / "tsc", "-p", HERE], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


def test_a_wrong_type_would_be_found(packages: Path, tmp_path: Path) -> None:
    """The check checks: a module that misuses another one fails."""
    wrong = f"// @ts-check\nimport {{ plural }} from '{ROOT}/console/static/app/core/format.js';\nplural('one', 1);\n"
    (tmp_path / "wrong.js").write_text(wrong)
    settings = json.loads((HERE / "tsconfig.json").read_text())
    settings["compilerOptions"].pop("paths")
    (tmp_path / "tsconfig.json").write_text(json.dumps({**settings, "include": ["wrong.js"]}))
    done = subprocess.run([packages / ".bin" / "tsc", "-p", tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "wrong.js(3" in done.stdout


@pytest.mark.parametrize("name", sorted(FILES))
def test_vendored_files_are_unmodified(packages: Path, name: str) -> None:
    """Byte by byte."""
    assert (VENDOR / name).read_bytes() == (packages / FILES[name]).read_bytes()
