"""Builds the wheels that this machine can build, looks into them, and tries those that it can run.

`make wheels` on Linux; `python .ci/wheels.py` with what requirements-wheels.txt lists anywhere. On Linux
every target whose standard library some rustc here has is linked with zig, against the oldest glibc or
musl that its tag promises; elsewhere the machine's own target is built. On Debian the library for arm64
comes with

    dpkg --add-architecture arm64 && apt-get update && apt-get install rustc-web libstd-rust-web-dev:arm64

A wheel must be at most 6 MB, keep its promise to every Python from 3.10 on (abi3audit) and to every Linux
of its tag (auditwheel), and hold nothing that is no part of the package. A wheel for this machine is then
installed into an empty environment, with the oldest and with the newest versions of what it depends on
and no compiler in reach, and gives there what `tests/smoke.py` asks.
"""

import argparse
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
LARGEST_BYTES = 6_000_000
LINUX = {
    "x86_64-unknown-linux-gnu": "manylinux2014",
    "aarch64-unknown-linux-gnu": "manylinux2014",
    "x86_64-unknown-linux-musl": "musllinux_1_2",
    "aarch64-unknown-linux-musl": "musllinux_1_2",
}
# Python for arm64 and what it loads, by the names that Debian 12 has for them.
ARM64 = (
    *("libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libsqlite3-0"),
    *("libssl3", "libstdc++6", "libuuid1", "zlib1g"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal"),
)
RUSTCS = ("rustc", "/usr/bin/rustc")
BIN = Path(sys.executable).parent


def run(*command: str | Path, **more: str) -> None:
    """Run a command, with more in its environment."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env={**os.environ, **more})


def rustc_for(target: str) -> str | None:
    """A rustc that has the standard library of the target."""
    for rustc in RUSTCS:
        asked = [rustc, "--print", "target-libdir", "--target", target]
        try:
            folder = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            continue
        if any(Path(folder).glob("libstd-*")):
            return rustc
    return None


def build() -> None:
    """The source distribution and the wheels."""
    asked = ["git", "rev-parse", "--short=9", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    known = {"INFERQ_COMMIT": commit, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    run(BIN / "maturin", "sdist", "--out", DIST, **known)
    common = ("build", "--release", "--locked", "--out", DIST)
    if sys.platform != "linux":
        run(BIN / "maturin", *common, **known)
        return
    for target, tag in LINUX.items():
        rustc = rustc_for(target)
        if rustc is None:
            print(f"{target}: not built, no rustc here has its standard library", flush=True)
            continue
        where = {"RUSTC": rustc, "CARGO_TARGET_DIR": str(ROOT / "target" / "wheels"), **known}
        run(BIN / "maturin", *common, "--zig", "--target", target, "--compatibility", tag, **where)


def look_into(wheel: Path) -> None:
    """Is it small, and does it hold and promise what it should?"""
    size = wheel.stat().st_size
    assert size <= LARGEST_BYTES, f"{wheel.name} has {size:,} bytes, more than {LARGEST_BYTES:,}"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    stray = [name for name in names if name.split("/")[0].split("-")[0] != "inferq" or "__pycache__" in name]
    assert not stray, f"{wheel.name} holds what is no part of the package: {stray}"
    assert any(name.startswith("inferq/_core.") for name in names), f"{wheel.name} has no core"
    print(f"{wheel.name}: {size:,} bytes, {len(names)} files", flush=True)
    run(BIN / "abi3audit", "--strict", "--summary", wheel)
    if "linux" in wheel.name:
        run(BIN / "auditwheel", "show", wheel)


def runs_here(wheel: Path) -> bool:
    """Is it for this machine?"""
    machine = platform.machine().lower()
    system = {"linux": "manylinux", "darwin": "macosx", "win32": "win"}[sys.platform]
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        system = "musllinux"
    return system in wheel.name and wheel.name.endswith(f"{machine}.whl")


def try_out(wheel: Path, python: str, resolution: str) -> None:
    """An empty environment, the wheel, and nothing else that could help."""
    place = ROOT / "target" / "wheels" / f"empty-{resolution}"
    uv = BIN / "uv"
    run(uv, "venv", "--quiet", "--clear", "--python", python, place)
    binaries = place / ("Scripts" if os.name == "nt" else "bin")
    install = (uv, "pip", "install", "--quiet", "--python", place, "--only-binary", ":all:")
    run(*install, "--resolution", resolution, "--requirement", ROOT / "pyproject.toml")
    run(*install, "--no-deps", wheel)
    run(*install, "pytest")
    run(uv, "pip", "list", "--quiet", "--python", place)
    run(binaries / "python", "-m", "tests.smoke", PATH=str(binaries))


def try_emulated(wheel: Path) -> None:
    """The wheel for arm64 under qemu-user, with Debian's Python for arm64, unpacked and not installed."""
    place = ROOT / "target" / "wheels" / "arm64"
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *(f"{name}:arm64" for name in ARM64)], check=True, cwd=place)
    for package in place.glob("*.deb"):
        run("dpkg", "--extract", package, place / "root")
    python = max((place / "root/usr/bin").glob("python3.[0-9]*"))
    for_arm64 = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", python.name[6:])
    run(BIN / "uv", "pip", "install", "--quiet", *for_arm64, "--target", place / "site", wheel, "pytest")
    emulated = ("qemu-aarch64", "-L", place / "root", python, "-m", "tests.smoke", "--scenarios", "200")
    run(*emulated, PYTHONPATH=str(place / "site"))


def main() -> None:
    """Build, look into, try."""
    asked = argparse.ArgumentParser(prog="wheels", description=__doc__.splitlines()[0])
    asked.add_argument("--python", default=platform.python_version(), help="the Python to try them with")
    asked.add_argument("--try-only", action="store_true", help="take the wheels in dist/ as they are")
    asked.add_argument("--emulate", action="store_true", help="try arm64 under qemu-user (Debian 12)")
    options = asked.parse_args()
    if not options.try_only:
        build()
    wheels = sorted(DIST.glob("*.whl"))
    assert wheels, f"no wheel in {DIST}"
    for wheel in wheels:
        look_into(wheel)
    for wheel in filter(runs_here, wheels):
        for resolution in ("lowest-direct", "highest"):
            try_out(wheel, options.python, resolution)
    for wheel in DIST.glob("*manylinux*_aarch64.whl") if options.emulate else ():
        try_emulated(wheel)


if __name__ == "__main__":
    main()
