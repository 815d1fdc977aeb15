"""Builds the wheels that this machine can build, looks into them, and tries those that it can run.

`make wheels` on Linux; `python .ci/wheels.py` with what requirements-wheels.txt lists anywhere. On Linux
every target whose standard library some rustc here has is linked with zig, against the oldest glibc or
musl that its tag promises; elsewhere the machine's own target is built. On Debian the library for arm64
comes with

    dpkg --add-architecture arm64 && apt-get update && apt-get install rustc-web libstd-rust-web-dev:arm64

The wheel for this machine is optimized with a profile: it is built with counters, runs `benches/train.py` and
is built again. That requires the `llvm-profdata` of rustc's LLVM (`rustup component add llvm-tools`; the one
of LLVM 19, which Debian 12 has, reads the profiles of Rust 1.95 too). Wheels for other machines and for musl
are built without a profile, because they cannot run here. If valgrind is installed, the instructions of some
simulations are counted in a plain wheel and in the optimized one.

A wheel must be at most 6 MB, keep its promise to every Python from 3.10 on (abi3audit) and to every Linux
of its tag (auditwheel), and hold nothing that is no part of the package. A wheel for this machine is then
installed into an empty environment, with the oldest and with the newest versions of what it depends on
and no compiler in reach, and gives there what `tests/smoke.py` asks.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benches/budget"))
from budget import CALLGRIND, Profile  # noqa: E402

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
BUILT = ROOT / "target" / "wheels"
PLAIN = BUILT / "plain"
# What cargo-zigbuild sets. The names of functions depend on it, and a profile refers to functions by name.
AS_WITH_ZIG = {
    "CARGO_TARGET_APPLIES_TO_HOST": "false",
    "CARGO_UNSTABLE_TARGET_APPLIES_TO_HOST": "true",
    "__CARGO_TEST_CHANNEL_OVERRIDE_DO_NOT_USE_THIS": "nightly",
}
MATURIN = (BIN / "maturin", "build", "--release", "--locked")


def run(*command: str | Path, **more: str) -> None:
    """Run a command, with more in its environment."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env={**os.environ, **more})


def rustc_for(target: str) -> str | None:
    """A rustc that has the standard library of the target."""
    for rustc in RUSTCS:
        asked = [rustc, "--print", "target-libdir", "--target", target]
        try:
            folder = printed(*asked)
        except (OSError, subprocess.CalledProcessError):
            continue
        if any(Path(folder).glob("libstd-*")):
            return rustc
    return None


def printed(*command: str | Path) -> str:
    """What a command prints."""
    parts = [str(part) for part in command]
    return subprocess.run(parts, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def host() -> str:
    """The target of this machine, as rustc calls it."""
    found = re.search(r"host: (\S+)", printed("rustc", "-vV"))
    assert found
    return found[1]


def profdata() -> Path | None:
    """The tool that merges profiles: rustc's own, or the newest one with a version in its name."""
    name = "llvm-profdata" + (".exe" if os.name == "nt" else "")
    own = Path(printed("rustc", "--print", "sysroot")) / "lib/rustlib" / host() / "bin" / name
    if own.exists():
        return own
    newest_first = (shutil.which(f"llvm-profdata-{version}") for version in range(40, 18, -1))
    return next((Path(path) for path in newest_first if path), None)


def record(pgo: str, python: str, known: dict[str, str]) -> Path | None:
    """The profile of the training runs; None if the wheels are to be built without one.

    `maturin build --pgo` does the same, but not with zig, whose linker rejects a flag of instrumented builds.
    """
    tool = None if pgo == "off" else profdata()
    if tool is None:
        missing = "llvm-profdata is not installed (rustup component add llvm-tools)"
        if pgo == "required":
            raise SystemExit(f"{missing}, and --pgo required needs it")
        if pgo == "auto":
            print(f"NO PROFILE IS USED: {missing}; all wheels are plain builds", flush=True)
        return None
    raw, counting, merged = BUILT / "profile", BUILT / "counting", BUILT / "merged.profdata"
    for folder in (raw, counting):
        shutil.rmtree(folder, ignore_errors=True)
    command = (*MATURIN, "--target", host(), "--auditwheel", "skip", "--out", counting)
    alike = AS_WITH_ZIG if sys.platform == "linux" else {}
    run(*command, **{**known, **alike, "RUSTFLAGS": f"-Cprofile-generate={raw}"})
    binaries = environment("trained", next(counting.glob("*.whl")), python)
    run(binaries / "python", ROOT / "benches/train.py")
    run(tool, "merge", "--output", merged, *raw.glob("*.profraw"))
    return merged


def build(pgo: str, python: str) -> None:
    """The source distribution and the wheels."""
    commit = printed("git", "rev-parse", "--short=9", "HEAD")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    known = {"INFERQ_COMMIT": commit, "PATH": path, "CARGO_TARGET_DIR": str(BUILT)}
    run(BIN / "maturin", "sdist", "--out", DIST, **known)
    profile = record(pgo, python, known)
    targets = LINUX if sys.platform == "linux" else {host(): ""}
    for target, tag in targets.items():
        rustc = rustc_for(target)
        if rustc is None:
            print(f"{target}: not built, no rustc here has its standard library", flush=True)
            continue
        with_rustc = {**known, "RUSTC": rustc}
        command = (*MATURIN, "--target", target, *(("--zig", "--compatibility", tag) if tag else ()))
        if target != host() or profile is None:
            run(*command, "--out", DIST, **with_rustc)
            continue
        if shutil.which("valgrind"):
            run(*command, "--out", PLAIN, **with_rustc)
        run(*command, "--out", DIST, **{**with_rustc, "RUSTFLAGS": f"-Cprofile-use={profile}"})


def environment(name: str, wheel: Path, python: str, resolution: str = "highest") -> Path:
    """A fresh virtual environment with a wheel and its dependencies; returns the folder of its programs."""
    place = BUILT / name
    uv = BIN / "uv"
    run(uv, "venv", "--quiet", "--clear", "--python", python, place)
    install = (uv, "pip", "install", "--quiet", "--python", place, "--only-binary", ":all:")
    run(*install, "--resolution", resolution, "--requirement", ROOT / "pyproject.toml")
    run(*install, "--no-deps", wheel)
    return place / ("Scripts" if os.name == "nt" else "bin")


def instructions(binaries: Path, scenario: str) -> float:
    """The instructions of the extension for a request, in a scenario that the profile does not contain.

    Released wheels have no symbols, so the instructions are counted by the file that contains them.
    """
    out = BUILT / f"{binaries.parent.name} {scenario}.callgrind"
    count = (*CALLGRIND, "--quiet", f"--callgrind-out-file={out}")
    requests = int(printed(*count, binaries / "python", ROOT / "benches/train.py", scenario))
    executions = Profile.of(out.read_text()).executions
    return sum(times for (of, _), times in executions.items() if "_core" in Path(of).name) / requests


def compare(python: str) -> None:
    """Print the instructions of a request in the plain and in the optimized wheel of this machine."""
    wheels = [[wheel for wheel in folder.glob("*.whl") if runs_here(wheel)] for folder in (PLAIN, DIST)]
    if not (all(wheels) and shutil.which("valgrind")):
        print(
            "Plain and optimized wheel are not compared: that requires valgrind and both wheels", flush=True
        )
        return
    names = ("counted-plain", "counted-optimized")
    places = [environment(name, of[0], python) for name, of in zip(names, wheels, strict=True)]
    scenarios = printed(places[0] / "python", ROOT / "benches/train.py", "--list").splitlines()
    print(f"{'instructions of a request':<28}{'plain':>8}{'PGO':>8}{'change':>9}", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = [pool.map(instructions, [place] * len(scenarios), scenarios) for place in places]
        for scenario, plain, optimized in zip(scenarios, *counts, strict=True):
            print(f"{scenario:<28}{plain:>8,.0f}{optimized:>8,.0f}{optimized / plain - 1:>+9.1%}", flush=True)


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
    binaries = environment(f"empty-{resolution}", wheel, python, resolution)
    uv, place = BIN / "uv", binaries.parent
    run(uv, "pip", "install", "--quiet", "--python", place, "--only-binary", ":all:", "pytest")
    run(uv, "pip", "list", "--quiet", "--python", place)
    run(binaries / "python", "-m", "tests.smoke", PATH=str(binaries))


def try_emulated(wheel: Path) -> None:
    """The wheel for arm64 under qemu-user, with Debian's Python for arm64, unpacked and not installed."""
    place = BUILT / "arm64"
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
    asked.add_argument(
        "--pgo",
        choices=("auto", "required", "off"),
        default="auto",
        help="profile-guided optimization of this machine's wheel: if llvm-profdata is installed (auto), "
        "or fail without it (required). Default: auto.",
    )
    options = asked.parse_args()
    if not options.try_only:
        build(options.pgo, options.python)
    wheels = sorted(DIST.glob("*.whl"))
    assert wheels, f"no wheel in {DIST}"
    for wheel in wheels:
        look_into(wheel)
    for wheel in filter(runs_here, wheels):
        for resolution in ("lowest-direct", "highest"):
            try_out(wheel, options.python, resolution)
    for wheel in DIST.glob("*manylinux*_aarch64.whl") if options.emulate else ():
        try_emulated(wheel)
    if not options.try_only:
        compare(options.python)


if __name__ == "__main__":
    main()
