"""`scripts/lock` writes `requirements/locks/`: every package that is installed, with its hashes.

All environments of one Python are resolved at once and the answer is split by who needs what, so
that a user's packages are the very ones that are tested. A server's own packages are resolved
first and hold for the rest, because a container installs requirements.txt on top of them: where
that would move one of them, nothing is written."""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
USE = ("requirements.txt", "requirements/server.txt")
ARCHIVE = (*USE, "extras/archive/requirements.txt", "extras/ray_serve/requirements.txt")
DEV = (*ARCHIVE, "requirements/dev.txt")
SERVERS = ("requirements/locks/servers/hf-serve.in", "requirements/locks/servers/toolkit.in")
# Each adds to those before it; one environment has the first, the first two, or all.
LAYERS = ("use", "archive", "dev")
# The files of an environment, and the Python that it has.
ENVIRONMENTS = {"3.12": LAYERS, "3.11": ("toolkit",)}
# pyannote.core 6 needs numpy 2; hf-serve's pyctcdecode wants 1, and nothing here uses it.
MOVED = "numpy>=2"
# The toolkit has what was current when it was last changed.
TOOLKIT_DATE = "2025-08-26"
# For benchmarks only: meeteval is compiled on a Mac, openai-whisper is Python without a wheel.
WITHOUT_WHEEL = {"meeteval", "openai-whisper"}
PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
LINUX = "sys_platform == 'linux'"
CPYTHON = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
PINNED = re.compile(r"([\w.-]+)==([^\s;]+)(?: ; (.*?))?(?: \\)?")
# An index that accepts connections and never answers costs ten seconds, not two minutes.
IMPATIENT = ("UV_HTTP_TIMEOUT=10", "UV_HTTP_RETRIES=0")
UNREACHABLE = ("error sending request", "dns error", "failed to connect", "network was disabled")


class LockError(Exception):
    """A resolution that failed; the text is uv's."""


class Pin(NamedTuple):
    """One package of a lock: name, version, condition, and the lines with hashes and origins."""

    name: str
    version: str
    marker: str
    more: tuple[str, ...] = ()

    @property
    def sources(self) -> set[str]:
        """The requirement files that name it: `requirements.txt`."""
        return {found for line in self.more for found in re.findall(r"#.*?-r (\S+)", line)}

    @property
    def text(self) -> str:
        first = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        hashed = any("--hash" in line for line in self.more)
        return "\n".join([first + " \\" * hashed, *self.more]) + "\n"


def read_pins(text: str) -> list[Pin]:
    """The packages of a lock, in its order."""
    found: list[Pin] = []
    for line in text.splitlines():
        if match := PINNED.fullmatch(line):
            found.append(Pin(match[1], match[2], match[3] or ""))
        elif line.startswith(" ") and found:
            found[-1] = found[-1]._replace(more=(*found[-1].more, line))
    return found


def shortened(marker: str, python: str) -> str:
    """A marker that says the same on the platforms that the locks are for."""
    version = {"python_version": python, "python_full_version": f"{python}.12"}
    places = [
        f"sys_platform == '{system}' and platform_machine == '{machine}'"
        for system, machine in PLATFORMS
        if not marker
        or Marker(marker).evaluate(
            {"sys_platform": system, "platform_machine": machine, **CPYTHON, **version}
        )
    ]
    if len(places) == len(PLATFORMS):
        return ""
    linux = [place for place in places if "linux" in place]
    return LINUX if len(places) == len(linux) > 1 else " or ".join(places)


def requirements(file: Path) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def disagreements(root: Path) -> list[str]:
    """Return a line for each contradiction between locks and requirement files under `root`."""
    found = []
    for python, layers in ENVIRONMENTS.items():
        pins = locked(root, layers)
        versions = {pin.name: pin.version for pin in pins}
        for name in DEV:
            where = f"{name}, Python {python}"
            named = requirements(root / name)
            known = {"python_version": python}
            asked = [one for one in named if not one.marker or one.marker.evaluate(known)]
            here = {pin.name for pin in pins if name in pin.sources}
            gone = here - {canonicalize_name(one.name) for one in named}
            found += [f"{where}: {package} is only in a lock" for package in sorted(gone)]
            for one in asked:
                version = versions.get(canonicalize_name(one.name))
                if version is None:
                    found.append(f"{where}: {one.name} is in no lock")
                elif not one.specifier.contains(version):
                    found.append(f"{where}: {one} is locked as {version}")
    return found


class Resolver:
    """uv for one Python and all platforms, in a folder of its own with copies of what it reads:
    only a pyproject.toml may name platforms."""

    def __init__(self, root: Path, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        for name in (*DEV, "requirements/locks/uv.in", *SERVERS):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
        places = [
            f"\"python_version == '{python}' and sys_platform == '{system}'"
            f" and platform_machine == '{machine}'\""
            for system, machine in PLATFORMS
        ]
        self.write("pyproject.toml", f"[tool.uv]\nenvironments = [{', '.join(places)}]\n")

    def write(self, name: str, text: str) -> str:
        """Write a file beside the copies; return its name."""
        (self.folder / name).write_text(text, "utf-8")
        return name

    def compile(self, sources: Iterable[str], *options: str, prefer: str = "") -> list[Pin]:
        """The packages for `sources`, by preference those of `prefer`. Raises LockError."""
        file = self.folder / (prefer or self.write("answer.txt", ""))
        everywhere = ("--universal", "--output-file", file.name)
        compile_with_uv(self.folder, self.python, sources, *everywhere, *options)
        pins = read_pins(file.read_text("utf-8"))
        return [pin._replace(marker=shortened(pin.marker, self.python)) for pin in pins]


def compile_with_uv(
    folder: Path, python: str, sources: Iterable[str], *options: str, patience: Iterable[str] = ()
) -> None:
    """`uv pip compile` in a folder, with the environment variables `patience` on top.

    Raises LockError with what uv says if it has no answer."""
    command = ["uv", "pip", "compile", "-q", "--no-header", "--python-version", python]
    command = ["env", *patience, *command, *options, *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockError(done.stderr.strip())


def renew(root: Path, upgrade: bool) -> None:
    """Write all locks anew. Versions stay where they may, unless `upgrade`."""
    with TemporaryDirectory() as serving, TemporaryDirectory() as toolkit:
        resolver = Resolver(root, "3.12", Path(serving))
        written = {"uv": resolver.compile(["requirements/locks/uv.in"], "--generate-hashes")}
        kept = [] if upgrade else locked(root, LAYERS)
        written["servers/hf-serve"], pins = _resolve(resolver, SERVERS[0], kept, MOVED)
        written |= _split(resolver, pins)
        kept = [] if upgrade else locked(root, ["toolkit"])
        resolver = Resolver(root, "3.11", Path(toolkit))
        written["servers/toolkit"], written["toolkit"] = _resolve(
            resolver, SERVERS[1], kept, "", "--exclude-newer", TOOLKIT_DATE
        )
    for name, pins in written.items():
        lines = ["# Written by scripts/lock.\n", *(pin.text for pin in pins)]
        (root / f"requirements/locks/{name}.txt").write_text("".join(lines), "utf-8")


def _resolve(
    resolver: Resolver, server_file: str, current: Iterable[Pin], moved: str, *options: str
) -> tuple[list[Pin], list[Pin]]:
    """Resolve a server's own packages with `options`, and all of its environment, with hashes.
    requirements.txt may move none of the server's but `moved`; those on top of it prefer the
    versions of `current`."""
    server = resolver.compile([server_file], "--no-annotate", *options)
    override = ("--overrides", resolver.write("moved.txt", moved))
    kept = [pin for pin in server if not re.match(rf"{pin.name}\b", moved)]
    constraints = ("--constraints", resolver.write("server.txt", _pinned(kept)))
    served = resolver.compile([server_file, USE[0]], *override, *constraints)
    preferred = resolver.write("locked.txt", _pinned([*current, *served]))
    everything = [*DEV, server_file]
    return server, resolver.compile(everything, *override, "--generate-hashes", prefer=preferred)


def _split(resolver: Resolver, pins: Sequence[Pin]) -> dict[str, list[Pin]]:
    """The packages of each layer that those before it do not have."""
    everything = ("--constraints", resolver.write("everything.txt", _pinned(pins)))
    written: dict[str, list[Pin]] = {}
    left = list(pins)
    for layer, files in zip(LAYERS, (USE, ARCHIVE), strict=False):
        needed = {pin.name for pin in resolver.compile(files, *everything)}
        written[layer] = [pin for pin in left if pin.name in needed]
        left = [pin for pin in left if pin.name not in needed]
    return {**written, LAYERS[-1]: left}


def locked(root: Path, layers: Iterable[str]) -> list[Pin]:
    """The packages of some locks; none of a lock that is not there yet."""
    files = [root / f"requirements/locks/{layer}.txt" for layer in layers]
    return [pin for file in files if file.is_file() for pin in read_pins(file.read_text("utf-8"))]


def _pinned(pins: Iterable[Pin]) -> str:
    """Names and versions; of two of a name the last."""
    versions = {pin.name: pin.version for pin in pins}
    return "".join(f"{name}=={version}\n" for name, version in versions.items())


def check_mac_wheels(root: Path) -> None:
    """Check that all of .venv but one package can be installed on Apple silicon without a compiler.
    Raises LockError if not, or if no package index can be asked."""
    pins = [pin for pin in locked(root, LAYERS) if pin.name not in WITHOUT_WHEEL]
    platform = ("--python-platform", "aarch64-apple-darwin", "--only-binary", ":all:", "--no-deps")
    with TemporaryDirectory() as folder:
        lines = [pin._replace(more=()).text for pin in pins]
        (Path(folder) / "pins.txt").write_text("".join(lines), "utf-8")
        compile_with_uv(Path(folder), "3.12", ["pins.txt"], *platform, patience=IMPATIENT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew the locks, or with `--check` say what is wrong with them. The exit status."""
    parser = argparse.ArgumentParser(prog="scripts/lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions allowed")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            renew(REPOSITORY, options.upgrade)
        found = disagreements(REPOSITORY)
        for line in found:
            print(line, file=sys.stderr)
        if found:
            print("scripts/lock renews the locks", file=sys.stderr)
            return 1
        check_mac_wheels(REPOSITORY)
    except LockError as error:
        if options.check and any(sign in str(error).lower() for sign in UNREACHABLE):
            print("Left out: wheels for Macs, as no package index can be reached", file=sys.stderr)
            return 0
        print(f"scripts/lock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
