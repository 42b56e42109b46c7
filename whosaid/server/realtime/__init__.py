"""OpenAI's Realtime transcription sessions over WebSocket: events, authentication and limits.

`live` transcribes. An unsupported event is answered by an `error` event that names it, and the
session goes on. An unsupported field is ignored, and `warnings` name it.
"""
