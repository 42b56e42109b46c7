"""Background transcription: `/v1/jobs`.

Proxies end requests after minutes, and connections break. A job is on disk before its client gets
the id, so it is completed even if the process ends, and its answer is written exactly once.
"""
