"""OpenAI's Realtime transcription sessions over WebSocket: their events in and out, who may open
one, and how many and how much.

`live` decides what a session transcribes. An event that cannot be served is refused by its name
with an `error` event, and the session goes on. A field that has no meaning here is ignored, and the
answer's `warnings` name it.
"""
