"""Reads and sets the process's environment, besides the settings of `config`."""

import os
import re
import sys
from fnmatch import fnmatch
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

FOLDER = "asr-diarization-endpoint"


def turn_graphs_off() -> bool:
    """Set CUDA_GRAPHS=0 for processes started from here; return False if it was 0 before."""
    before, os.environ["CUDA_GRAPHS"] = os.environ.get("CUDA_GRAPHS"), "0"
    return before != "0"


def nvidia_device_present(devices: Path = Path("/dev")) -> bool:
    """Return whether this machine has an NVIDIA GPU, usable or not: a `/dev/nvidia` with a number,
    or one that NVIDIA_VISIBLE_DEVICES names, but not by `all`, which CUDA's images always set.
    """
    if any(re.fullmatch(r"nvidia\d+", path.name) for path in devices.glob("nvidia*")):
        return True
    return os.environ.get("NVIDIA_VISIBLE_DEVICES", "").strip() not in ("", "all", "none", "void")


def cache_folder() -> Path:
    """Return the folder of downloads; it may not exist yet. Raises RuntimeError without a home."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Return the user's folder for data; it may not exist. Raises RuntimeError without a home."""
    apple = sys.platform == "darwin"
    return _user_folder(
        "XDG_STATE_HOME", "Library/Application Support" if apple else ".local/state"
    )


def _user_folder(variable: str, default: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    # The XDG specification says to ignore a relative path.
    return (named if named.is_absolute() else Path.home() / default) / FOLDER


class Proxy(NamedTuple):
    """A proxy's URL, and for messages its host and port, without a password, and the variable."""

    url: str
    address: str
    variable: str


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy for a URL, as curl and httpx choose it; None without one, or if NO_PROXY has
    the host, a domain of it, or a network that contains it.
    """
    proxies, parts = getproxies(), urlsplit(url)
    scheme = next((each for each in (parts.scheme, "all") if proxies.get(each)), None)
    host, without = parts.hostname or "", proxies.get("no", "").split(",")
    bypassed = proxy_bypass(parts.netloc.rpartition("@")[2])
    if scheme is None or bypassed or any(_has(each.strip(), host) for each in without):
        return None
    address = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    return Proxy(address, urlsplit(address).netloc.rpartition("@")[2], variable)


def _has(entry: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:  # names
        return fnmatch(host, entry)
