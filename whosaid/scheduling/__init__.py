"""Order of work: shares of its classes, queues of recordings, coroutines in small steps."""
