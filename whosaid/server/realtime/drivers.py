"""Opens live drivers on one endpoint's models."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.endpoint import Endpoint
from whosaid.live.driver import LiveDriver, Send
from whosaid.live.settings import TurnSettings
from whosaid.live.turn_detection import TurnDetector
from whosaid.runtime.device import set_threads

# Threads that decode audio and detect speech, in short tasks.
THREADS = 4
# The options with which an item is transcribed, like a file with word times.
PARAMETERS = {"return_timestamps": "word", "diarize": False}


class LiveDrivers:
    """Opens drivers on an `endpoint`'s recogniser."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._options = endpoint.parse({"inputs": "", "parameters": PARAMETERS}).options
        detect = endpoint.transcriber.detect_speech
        self._detector = detect if isinstance(detect, SpeechDetector) else SpeechDetector()
        self._workers = ThreadPoolExecutor(THREADS, "live", partial(set_threads, 1))

    def __call__(self, send: Send) -> LiveDriver:
        """Return a driver with the default settings."""
        detector = TurnDetector(self._detector, TurnSettings())
        recogniser, open_speakers = self._endpoint.recogniser, self._endpoint.session_speakers
        return LiveDriver(recogniser, self._workers, detector, self._options, send, open_speakers)
