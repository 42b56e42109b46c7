"""A handler without models, which does what a recording's bytes tell it to; and recordings."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from config import InferenceConfig
from extras.archive.worker import load_handler
from whosaid.errors import InvalidAudio, InvalidParameter, ModelError

TEXT = "what nobody may read in a log"


class StandIn:
    """Answers `say ...`; other commands fail, hang, or kill the process."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def parse(self, data: object) -> object:
        config = InferenceConfig.read(data["parameters"])
        if config.language == "cy":
            raise InvalidParameter("language: is not one of the model's")
        return config

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        config = self.parse(data)
        self.batch_sizes.append(config.batch_size)
        command, _, argument = base64.b64decode(data["inputs"]).decode().partition(" ")
        more = getattr(self, command)(argument, config)
        answer = {"text": f"{TEXT}: {argument}", "speakers": [], "chunks": [], "duration": 1.0}
        answer |= more or {}
        if config.return_timestamps == "word":
            words = {"word": f" {argument}", "timestamp": [0.0, 1.0], "probability": None}
            answer["chunks"] = [{"text": f" {argument}", "timestamp": [0.0, 1.0]}]
            answer["words"] = [words]
        if config.output:
            answer["output"] = {name: f"{name} of {argument}\n" for name in config.output}
        return answer

    def say(self, argument: str, config: InferenceConfig) -> None:
        pass

    def leave_out(self, argument: str, config: InferenceConfig) -> dict[str, Any]:
        return {"unwritten": json.loads(argument)}

    def kill(self, argument: str, config: InferenceConfig) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_once(self, argument: str, config: InferenceConfig) -> None:
        if not Path(argument).exists():
            Path(argument).touch()
            self.kill(argument, config)

    def hang(self, argument: str, config: InferenceConfig) -> None:
        time.sleep(3600)

    def refuse(self, argument: str, config: InferenceConfig) -> None:
        raise InvalidAudio("no audio stream found")

    def fail(self, argument: str, config: InferenceConfig) -> None:
        raise ModelError("returned nonsense")

    def end(self, argument: str, config: InferenceConfig) -> None:
        """As the endpoint does whose engine has stopped: this process ends a moment later."""
        from whosaid.runtime.errors import end_process

        end_process("speech recognition has stopped")
        self.fail(argument, config)

    def lose_device(self, argument: str, config: InferenceConfig) -> None:
        from whosaid.runtime.errors import endpoint_errors

        with endpoint_errors():
            raise RuntimeError("CUDA error: unspecified launch failure")

    def crash(self, argument: str, config: InferenceConfig) -> None:
        raise KeyError(TEXT)


def stand_in(settings: dict[str, Any]) -> StandIn:
    """In place of `load_handler`."""
    return StandIn()


def endpoint(settings: dict[str, Any]) -> Any:
    """The endpoint's own handler, but for recordings that are commands."""
    handler, other = load_handler(settings), StandIn()

    def answer(data: dict[str, Any]) -> dict[str, Any]:
        command = base64.b64decode(data["inputs"])
        return (other if command.startswith((b"kill", b"crash")) else handler)(data)

    answer.parse = handler.parse
    return answer


def no_model(settings: dict[str, Any]) -> StandIn:
    """As the endpoint ends where it cannot load."""
    raise SystemExit("START_FAILED: ASR_MODEL: there is no such model")


def write_recordings(folder: Path, commands: dict[str, str]) -> None:
    """Files by name, each with its command."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in commands.items():
        (folder / name).write_text(command)
