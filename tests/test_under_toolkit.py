"""The choice of test modules that run in both environments, by what they import."""

from tests.helpers.under_toolkit import chosen


def test_only_tests_of_the_endpoint_are_chosen():
    names = {path.stem.removeprefix("test_") for path in chosen()}
    assert {"audio", "handler", "enrolment", "loading", "engine", "clustering"} <= names
    around = {"architecture", "deploy", "gpu_check", "server", "fairness", "subtitles"}
    assert not names & {*around, "requirements", "setup", "transcribe_main"}
