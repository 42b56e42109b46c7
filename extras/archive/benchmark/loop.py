"""The plain loop that an archive is compared with.

It does what a worker does and nothing else: reads a file, asks the handler and drops the answer.
Prints one line of JSON: seconds to load, and seconds from the first file on.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path

from config import ModelSettings
from handler import EndpointHandler


def main() -> None:
    """Answer every file of the folder, in order of their names."""
    started = time.perf_counter()
    handler = EndpointHandler(settings=ModelSettings.from_environment())
    loaded = time.perf_counter()
    for path in sorted(Path(sys.argv[1]).iterdir()):
        handler({"inputs": base64.b64encode(path.read_bytes()).decode(), "parameters": {}})
    ended = time.perf_counter()
    print(json.dumps({"load": loaded - started, "work": ended - loaded}))


if __name__ == "__main__":
    main()
