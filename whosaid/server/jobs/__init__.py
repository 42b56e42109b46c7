"""Recordings that are sent now and answered later: `/v1/jobs`.

Proxies end requests after minutes, and connections break. A job is on the disk before its client
gets its id. So it is done even if the process ends, and its answer is written once.
"""
