"""The endpoint behind an HTTP server of our own: the same answers, for many clients at once.

`endpoint` interprets requests. This package has the parts that one process needs to serve many
clients over HTTP: a queue, refusals, streams of progress, metrics and a page.
"""
