"""Decodes files in another process, and measures its peak memory."""

import json
from pathlib import Path

from tests.helpers.programs import run_python

SCRIPT = """
import json, sys
from pathlib import Path
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.errors import ClientError
def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])
limits = AudioLimits(7200, 2**28)
decode_audio(Path(sys.argv[1]).read_bytes(), 16000, limits)
results, before = [], kib("VmRSS")
for path in sys.argv[2:]:
    try:
        results.append(decode_audio(Path(path).read_bytes(), 16000, limits).duration)
    except ClientError as error:
        results.append(error.code)
print(json.dumps([results, kib("VmHWM") - before]))
"""


def decoded_elsewhere(folder: Path, harmless: bytes, *files: bytes) -> tuple[list[object], int]:
    """Return each file's duration or error code, and the growth in bytes after a `harmless` one."""
    paths = [folder / str(number) for number in range(1 + len(files))]
    for path, data in zip(paths, (harmless, *files), strict=True):
        path.write_bytes(data)
    results, kib = json.loads(run_python("-c", SCRIPT, *paths, check=True).stdout)
    return results, kib << 10
