"""The endpoint behind an HTTP server of our own: the same answers, for many clients at once.

`endpoint` decides what a request means. Here is what one process needs to serve many clients over
HTTP: a queue, refusals, streams of progress, metrics and a page.
"""
