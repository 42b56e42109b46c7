"""Messages: code first, ASCII, one line, at most 500 characters."""

from hypothesis import given
from hypothesis import strategies as st

from whosaid import errors
from whosaid.errors import ClientError, EndpointError, ServerError, StartError


def leaves(kind: type[EndpointError]) -> list[type[EndpointError]]:
    """The errors of this module that have none below them; the server has more of its own."""
    ours = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    below = [leaf for child in ours for leaf in leaves(child)]
    return below or [kind]


def test_client_errors_and_no_others_are_value_errors():
    assert all(issubclass(leaf, ValueError) for leaf in leaves(ClientError))
    assert not any(issubclass(leaf, ValueError) for leaf in [*leaves(ServerError), StartError])


@given(st.sampled_from(leaves(EndpointError)), st.text(max_size=700))
def test_any_text_makes_a_short_ascii_line_behind_its_code(kind, text):
    message = str(kind(text))
    assert message.startswith(f"{kind.code}:")
    assert message.isascii()
    assert "\n" not in message
    assert len(message) <= 500


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=100))
def test_plain_text_is_left_as_it_is(text):
    assert str(StartError(text)) == f"START_FAILED: {text}"
