"""The Debian package: its configuration is one that loads, and it installs, runs and goes as packages do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightmq.configuration import load_configuration
from tests.processes.rig import DEADLINE_S, Client, Server
from tests.support.tree import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import deb

DEBIAN = ROOT / "deploy" / "debian"
TOML = DEBIAN / "lightmq.toml"
MOUNT = """\
mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work" "$0/root" &&
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root" &&
mount -t proc proc "$0/root/proc" && mount --bind /dev "$0/root/dev" && cp "$1" "$0/root/mnt/" && exec sleep 1200
"""
"""A root that has this machine's files and keeps every change to itself; it goes with the process."""


def test_the_configuration_is_one_that_loads(tmp_path: Path) -> None:
    """As it is shipped, on loopback; and with what it proposes for devices of other machines."""
    shipped = load_configuration(TOML, {}).value
    assert shipped.up.data_directory == Path("/var/lib/lightmq")
    assert (shipped.up.host, shipped.proxy.listen_host) == ("127.0.0.1", "127.0.0.1")
    file = tmp_path / "lightmq.toml"
    file.write_text(re.sub(r"^#(?=[\[a-z]|$)", "", TOML.read_text(), flags=re.MULTILINE))
    opened = load_configuration(file, {}).value.proxy
    assert (opened.host, opened.listen.tls_port, opened.password_file) == ("0.0.0.0", 8883, Path("/etc/lightmq/users"))


def test_units_and_package_agree() -> None:
    """The units start what the package has where it has it, with its configuration, as the user it makes."""
    user = re.search(r"^ +adduser .* (\S+)$", (DEBIAN / "postinst").read_text(), re.MULTILINE)
    assert user is not None
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        text = unit.read_text()
        assert f"ExecStart=/{deb.ENVIRONMENT}/bin/lightmq " in text
        assert f"--config {deb.CONFFILES[0]} " in text
        assert f"\nUser={user[1]}\n" in text


@pytest.mark.parametrize("name", deb.SCRIPTS)
def test_scripts_are_scripts(name: str) -> None:
    """By the shell's own reading, and they end at the first failure."""
    subprocess.run(["sh", "-n", DEBIAN / name], check=True)
    assert "\nset -e\n" in (DEBIAN / name).read_text()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root of its own with the package in /mnt: that which LIGHTMQ_DEB names, or one with the pure core."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dpkg-deb", "unshare", "chroot"))):
        pytest.skip("needs root on Debian or Ubuntu")
    package = Path(os.environ["LIGHTMQ_DEB"]).resolve() if "LIGHTMQ_DEB" in os.environ else pure_package(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", MOUNT, place, package])
    try:
        inside = Path(f"/proc/{process.pid}/root{place}/root")
        while not (inside / "mnt" / package.name).exists():
            if process.poll() is not None:
                pytest.skip("needs the right to mount an overlay")
        yield inside
    finally:
        process.kill()
        process.wait()


def pure_package(folder: Path) -> Path:
    """A package that is built in seconds."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    wheel = [uv, "build", "--quiet", "--wheel", "--python", deb.SYSTEM_PYTHON, "--out-dir", folder / "wheel"]
    subprocess.run(wheel, cwd=ROOT, env={**os.environ, "LIGHTMQ_PURE": "1"}, check=True)
    (made,) = (folder / "wheel").glob("*.whl")
    assert deb.main(["--wheel", str(made), "--out", str(folder)]) == 0
    (package,) = folder.glob("lightmq_*.deb")
    return package


def run(root: Path, *command: str) -> str:
    done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_it_installs_runs_and_goes(root: Path) -> None:
    """A message is taken by what the unit would start; changes of the configuration and messages are never lost."""
    package = f"/mnt/{next((root / 'mnt').glob('lightmq_*.deb')).name}"
    run(root, "dpkg", "-i", package)
    assert run(root, "systemctl", "is-enabled", "lightmq.service").strip() == "enabled"
    assert run(root, "lightmq", "--version").startswith("lightmq ")
    core = run(root, "/opt/lightmq/bin/python", "-c", "import mqtt_proxy; print(mqtt_proxy.TYPED.name)").strip()
    assert core == ("compiled" if "LIGHTMQ_DEB" in os.environ else "pure")
    files = [path for path in (root / "opt" / "lightmq").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= 60_000_000
    config = root / "etc" / "lightmq" / "lightmq.toml"
    assert run(root, "stat", "-c", "%U %G %a", "/etc/lightmq/lightmq.toml").split() == ["root", "lightmq", "640"]
    config.write_text(config.read_text() + "# mine\n")
    run(root, "dpkg", "-i", package)
    assert config.read_text().endswith("# mine\n")
    unit = (root / "lib" / "systemd" / "system" / "lightmq.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert start is not None
    ports = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0", "--json"]
    command = ["chroot", "--userspec=lightmq:lightmq", root, *start[1].split(), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        server = Server(root / "tmp" / "unused")
        server.port = json.loads(process.stdout.readline())["mqtt"]
        client = Client(server, "sensor")
        client.publish("plant/1", b"21.5")
        client.close()
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    run(root, "dpkg", "--purge", "lightmq")
    assert not (root / "opt" / "lightmq").exists()
    assert not config.exists()
    assert any((root / "var" / "lib" / "lightmq" / "broker").iterdir()), "messages stay"
