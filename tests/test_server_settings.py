"""The server's settings: accepted names, origins and keys, and their values."""

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


def test_white_space_around_the_key_is_dropped(monkeypatch):
    """Otherwise a line feed at the end of a secret's file locks every client out."""
    monkeypatch.setenv("API_KEY", f" {SECRET}\n")
    assert ServerSettings.from_environment().api_key == SecretStr(SECRET)
    monkeypatch.setenv("API_KEY", " ")
    with pytest.raises(ValueError, match=r"^API_KEY: "):
        ServerSettings.from_environment()


@pytest.mark.parametrize(
    ("key", "warns"), [("short", True), ("x" * 15, True), ("x" * 16, False), (None, False)]
)
def test_a_guessable_key_is_warned_of(key, warns):
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
        *(
            ("ALLOWED_HOSTS", each)
            for each in ("https://a.example", "a.example:8000", "a.example,")
        ),
        *(("ALLOWED_HOSTS", each) for each in ("a.*.example", "a b")),
        *(("ALLOWED_ORIGINS", each) for each in ("a.example", "https://a.example/", "null")),
        ("ALLOWED_ORIGINS", "https://*"),
    ],
)
def test_names_that_match_nothing_are_refused_at_start(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"^{name}: should be ") as caught:
        ServerSettings.from_environment()
    assert text not in str(caught.value)


@pytest.mark.parametrize("settings", [ModelSettings, ServerSettings])
def test_variables_of_other_settings_are_no_misspellings(settings):
    """Each reader of variables warns of those that are nearly its own."""
    every = (*ModelSettings.model_fields, *ServerSettings.model_fields)
    assert misspelt_variables(settings, given=map(str.upper, every)) == []
