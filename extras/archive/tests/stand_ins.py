"""A handler without models, which obeys the commands in a recording's bytes; and recordings."""

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from config import InferenceConfig
from whosaid.errors import InvalidAudio, InvalidParameter, ModelError

TEXT = "what nobody may read in a log"


class StandIn:
    """Answers `say ...`; other commands fail, hang, or kill the process."""

    def __init__(self) -> None:
        self.configs: list[InferenceConfig] = []

    def parse(self, data: object) -> object:
        config = InferenceConfig.read(data["parameters"])
        if config.language == "cy":
            raise InvalidParameter("language: is not one of the model's")
        return config

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        config = self.parse(data)
        self.configs.append(config)
        command, _, argument = base64.b64decode(data["inputs"]).decode().partition(" ")
        answer = {"text": f"{TEXT}: {argument}", "speakers": [], "chunks": [], "duration": 1.0}
        answer |= getattr(self, command)(argument) or {}
        if config.return_timestamps == "word":
            words = {"word": f" {argument}", "timestamp": [0.0, 1.0], "probability": None}
            answer["chunks"] = [{"text": f" {argument}", "timestamp": [0.0, 1.0]}]
            answer["words"] = [words]
        if config.output:
            answer["output"] = {name: f"{name} of {argument}\n" for name in config.output}
        return answer

    def say(self, argument: str) -> None:
        pass

    def leave_out(self, argument: str) -> dict[str, Any]:
        return {"unwritten": json.loads(argument)}

    def kill(self, argument: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_once(self, argument: str) -> None:
        if not Path(argument).exists():
            Path(argument).touch()
            self.kill(argument)

    def hang(self, argument: str) -> None:
        time.sleep(3600)

    def refuse(self, argument: str) -> None:
        raise InvalidAudio("no audio stream found")

    def fail(self, argument: str) -> None:
        raise ModelError("returned nonsense")

    def crash(self, argument: str) -> None:
        raise KeyError(TEXT)


def stand_in(settings: dict[str, Any]) -> StandIn:
    """Replaces `load_handler`."""
    return StandIn()


def no_model(settings: dict[str, Any]) -> StandIn:
    """End like the endpoint if its model cannot be loaded."""
    raise SystemExit("START_FAILED: ASR_MODEL: there is no such model")


def dies(settings: dict[str, Any]) -> StandIn:
    os.kill(os.getpid(), signal.SIGKILL)


def write_recordings(folder: Path, commands: dict[str, str]) -> None:
    """Write files by name, each with its command."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in commands.items():
        (folder / name).write_text(command)
