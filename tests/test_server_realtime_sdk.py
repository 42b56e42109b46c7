"""OpenAI's own client, in front of the server as it listens."""

import asyncio
import base64
from contextlib import contextmanager

import openai
import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK

from tests.helpers.asgi import FakeEndpoint
from tests.helpers.live_app import listening
from tests.helpers.live_stand_ins import Drivers, live
from whosaid.server.lifecycle import DrainingServer

KEY = "the-right-key-of-this-test"
AUDIO = base64.b64encode(bytes(480)).decode()
QUERY = {"intent": "transcription"}
PREFIX = "conversation.item.input_audio_transcription"
ITEM = [
    "input_audio_buffer.committed",
    "conversation.item.added",
    f"{PREFIX}.delta",
    f"{PREFIX}.completed",
    "conversation.item.done",
]


@contextmanager
def listens(drivers=None, **settings):
    """Options of the SDK's clients, with the key."""
    app = live(drivers or Drivers(), api_key=KEY, **settings)
    with listening(DrainingServer(app, FakeEndpoint(), 600)) as (host, port):
        yield {"base_url": f"http://{host}:{port}/v1", "api_key": KEY, "max_retries": 0}


def test_a_session_of_the_asynchronous_client():
    async def talk(options):
        async with (
            openai.AsyncOpenAI(**options) as client,
            client.realtime.connect(extra_query=QUERY) as connection,
        ):
            created = await connection.recv()
            await connection.session.update(
                session={
                    "type": "transcription",
                    "audio": {"input": {"transcription": {"language": "en"}}},
                    "include": ["item.input_audio_transcription.logprobs"],
                }
            )
            updated = await connection.recv()
            await connection.input_audio_buffer.append(audio=AUDIO)
            await connection.input_audio_buffer.commit()
            item = [await connection.recv() for _ in ITEM]
            await connection.response.create(event_id="mine")
            refused = await connection.recv()
            await connection.input_audio_buffer.clear()
            return created, updated, item, refused, await connection.recv()

    with listens() as options:
        created, updated, item, refused, cleared = asyncio.run(talk(options))
    assert (created.type, created.session.type) == ("session.created", "transcription")
    assert updated.session.audio.input.transcription.language == "en"
    assert updated.session.include == ["item.input_audio_transcription.logprobs"]
    assert [event.type for event in item] == ITEM
    assert (item[2].delta, item[2].logprobs[0].token) == ("480 bytes", "A")
    assert (item[3].transcript, item[3].usage.seconds) == ("480 bytes", 0.5)
    assert item[0].item_id == item[1].item.id == item[2].item_id == item[4].item.id
    assert type(refused).__name__ == "RealtimeErrorEvent"
    assert (refused.error.code, refused.error.event_id) == ("unsupported_event", "mine")
    assert cleared.type == "input_audio_buffer.cleared"


def test_a_secret_opens_the_synchronous_clients_session():
    with listens() as options, openai.OpenAI(**options) as client:
        session = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
        secret = client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60}, session=session
        )
        assert type(secret.session).__name__ == "RealtimeTranscriptionSessionCreateResponse"
        with (
            openai.OpenAI(**options | {"api_key": secret.value}) as browser,
            browser.realtime.connect(extra_query=QUERY) as connection,
        ):
            assert connection.recv().session.audio.input.turn_detection is None
            connection.input_audio_buffer.append(audio=AUDIO)
            connection.send({"type": "input_audio_buffer.commit", "final": True})
            assert [connection.recv().type for _ in ITEM] == ITEM
            with pytest.raises(ConnectionClosedOK):
                connection.recv()


@pytest.mark.parametrize(
    ("seconds", "end"), [(0.3, ConnectionClosedError), (None, ConnectionClosedOK)]
)
def test_clients_ahead_of_real_time_get_no_pongs(seconds, end):
    """By docs/api.md pings are not answered while nothing is read."""
    pings = {"ping_interval": 0.1, "ping_timeout": seconds}
    ahead = base64.b64encode(bytes(2 * 24_000 * 2)).decode()
    with (
        listens(live_ahead_seconds=0.1) as options,
        openai.OpenAI(**options) as client,
        client.realtime.connect(
            extra_query=QUERY, websocket_connection_options=pings
        ) as connection,
    ):
        for _ in range(2):
            connection.input_audio_buffer.append(audio=ahead)
        connection.send({"type": "input_audio_buffer.commit", "final": True})
        with pytest.raises(end):
            list(iter(connection.recv, None))
