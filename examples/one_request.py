"""Answers one request as the handler does, and logs what happens meanwhile.

    python -m examples.one_request demo/conversation.ogg

The models are the demo's; `EndpointHandler()` takes those that the environment names.
"""

import base64
import logging
import sys
from pathlib import Path

from config import ModelSettings
from handler import EndpointHandler


def main(recording: str) -> None:
    logging.basicConfig(format="%(relativeCreated)6d ms %(levelname)s %(message)s")
    logging.getLogger("endpoint").setLevel(logging.INFO)
    handler = EndpointHandler(settings=ModelSettings.for_demo())
    audio = base64.b64encode(Path(recording).read_bytes()).decode()
    answer = handler({"inputs": audio, "parameters": {"return_timestamps": "word"}})
    for turn in answer["speakers"]:
        start, end = turn["timestamp"]
        print(f"{start:6.2f} {end:6.2f} {turn['speaker']}:{turn['text']}")
    print("warnings:", answer.get("warnings"))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit(__doc__)
    main(sys.argv[1])
