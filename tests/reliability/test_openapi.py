"""The described routes answer every request that schemathesis makes of the description."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from whosaid.server.app import create_app
from whosaid.server.settings import ServerSettings

# A body that the description allows need not hold sound.
NOT_ASKED = [positive_data_acceptance]


@pytest.fixture(scope="module")
def operations(tiny_endpoint) -> list:
    app = create_app(tiny_endpoint, ServerSettings(page=False, allowed_hosts="testserver"))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("examples", [5, pytest.param(300, marks=pytest.mark.reliability)])
def test_every_route_does_as_it_says(operations, examples):
    assert len(operations) >= 9
    for operation in operations:

        @settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def ask(case) -> None:
            case.call_and_validate(excluded_checks=NOT_ASKED)

        ask()
