"""The exceptions of huggingface_hub for the Hub's answers, with any release's HTTP library."""

from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status


def hub_error(status: int, code: str = "", repository: str = "owner/model") -> Any:
    """The exception for a request of a file of `repository`; `code` is the X-Error-Code."""
    url = f"https://huggingface.co/{repository}/resolve/main/config.json"
    headers = {"X-Error-Code": code} if code else {}
    with pytest.raises(HfHubHTTPError) as caught:
        hf_raise_for_status(hub_response(status, headers, url))
    return caught.value


def hub_response(status: int, headers: dict[str, str], url: str) -> Any:
    """An answer to a HEAD request, of the library whose error HfHubHTTPError extends."""
    library = HfHubHTTPError.__mro__[1].__module__.partition(".")[0]
    if library == "requests":
        import requests

        response = requests.Response()
        response.status_code, response.url = status, url
        response.headers.update(headers)
        response.request = requests.Request("HEAD", url).prepare()
        return response
    http = pytest.importorskip(library)
    return http.Response(status, headers=headers, request=http.Request("HEAD", url))
