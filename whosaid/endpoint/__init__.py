"""The endpoint: parses requests, runs their steps in threads, and gives events and answers."""

from whosaid.endpoint.endpoint import Endpoint
from whosaid.endpoint.events import Decoded, Diarized, Event, Finished, answer_of
from whosaid.endpoint.workers import Models, Workers

__all__ = ["Decoded", "Diarized", "Endpoint", "Event", "Finished", "Models", "Workers", "answer_of"]
