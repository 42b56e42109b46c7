"""The endpoint behind an HTTP server of our own: the same answers, for many clients at once.

The one decision: what a request means is the handler's matter. This package adds what one process
needs to serve many clients: queues, batching across requests, refusals, progress and pages.
"""
