"""The server's settings: what names, origins and keys are taken, and what they are read as."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from config import ModelSettings, misspelt_variables
from whosaid.server.settings import ServerSettings

SECRET = "a-secret-of-many-letters"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Nothing of this machine's environment counts."""
    for name in ServerSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def test_the_servers_key_is_read_without_what_no_header_can_carry(monkeypatch):
    """Otherwise a line feed at the end of a secret's file locks every client out."""
    monkeypatch.setenv("API_KEY", f" {SECRET}\n")
    key = ServerSettings.from_environment().api_key
    assert key == SecretStr(SECRET)
    monkeypatch.setenv("API_KEY", " ")
    with pytest.raises(ValueError, match=r"^API_KEY: "):
        ServerSettings.from_environment()


@pytest.mark.parametrize(
    ("key", "warns"), [("short", True), ("x" * 15, True), ("x" * 16, False), (None, False)]
)
def test_a_key_that_can_be_guessed_is_warned_of(key, warns):
    warning = ServerSettings(api_key=key).warning
    assert bool(warning) is warns
    if warning:
        assert warning.startswith("API_KEY ")
        assert key not in warning


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("ALLOWED_HOSTS", "asr.Example, *.b.example,10.0.0.1", "asr.example *.b.example 10.0.0.1"),
        ("ALLOWED_HOSTS", "[::1], 2001:db8::1", "[::1] 2001:db8::1"),
        ("ALLOWED_HOSTS", "*", "*"),
        ("ALLOWED_HOSTS", "", ""),
        ("ALLOWED_ORIGINS", "HTTPS://a.example, http://b:3000", "https://a.example http://b:3000"),
        ("ALLOWED_ORIGINS", "http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_names_are_read_as_a_list(monkeypatch, name, text, read):
    monkeypatch.setenv(name, text)
    assert getattr(ServerSettings.from_environment(), name.lower()) == frozenset(read.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ALLOWED_HOSTS", "https://a.example"),
        ("ALLOWED_HOSTS", "a.example:8000"),
        ("ALLOWED_HOSTS", "a.example,"),
        ("ALLOWED_HOSTS", "a.*.example"),
        ("ALLOWED_HOSTS", "a b"),
        ("ALLOWED_ORIGINS", "a.example"),
        ("ALLOWED_ORIGINS", "https://a.example/"),
        ("ALLOWED_ORIGINS", "null"),
        ("ALLOWED_ORIGINS", "https://*"),
    ],
)
def test_names_that_could_not_match_are_refused_at_start(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"^{name}: should be ") as caught:
        ServerSettings.from_environment()
    assert text not in str(caught.value)


@pytest.mark.parametrize("settings", [ModelSettings, ServerSettings])
def test_what_the_others_read_is_not_taken_for_a_misspelling(settings):
    """Each reader of variables warns of those that are nearly its own."""
    every = (*ModelSettings.model_fields, *ServerSettings.model_fields)
    assert misspelt_variables(settings, given=map(str.upper, every)) == []
