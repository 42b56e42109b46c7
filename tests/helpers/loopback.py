"""Scripted HTTP servers on loopback, each in a thread of its own."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Handler(BaseHTTPRequestHandler):
    """Answers that are not logged."""

    server: Any

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def send(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Loopback(ThreadingHTTPServer):
    """Serves by a handler's class while the context lasts."""

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing about a client that has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
