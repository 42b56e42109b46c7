"""Recordings that are sent now and answered later: `/v1/jobs`.

Proxies end requests after minutes, and connections break. A job is on the disk before its client is
told of it, so that whatever happens to the process, it is done, and its answer is written once.
"""
