"""Transcription of audio that is still being spoken: samples and results in, events and wanted
passes out. Nothing here knows of sockets; `server.realtime` has the wire.
"""
