"""Live transcription: audio and decoding results in, events for the client out.

`server.realtime` has the WebSocket.
"""
