"""Serves with a command line and the environment, until SIGTERM or until the engine stops.

The port is bound before models are downloaded and loaded; meanwhile only `/health` is answered.
"""

from __future__ import annotations

import logging
import time
from argparse import Namespace

from config import ModelSettings, misspelt_variables
from handler import load_endpoint
from whosaid.asr import Limits
from whosaid.endpoint import Endpoint
from whosaid.models.choice import choose
from whosaid.server.app import create_app
from whosaid.server.gate import Gate
from whosaid.server.jobs.store import JobStore
from whosaid.server.lifecycle import DrainingServer, answering_health, bind
from whosaid.server.realtime.drivers import LiveDrivers
from whosaid.server.settings import ServerSettings

logger = logging.getLogger("server")


def serve(options: Namespace, settings: ServerSettings) -> int:
    """Return the exit status. Raises StartError, or SystemExit if a model does not load."""
    if warning := settings.warning:
        logger.warning(warning)
    with bind(settings) as bound:
        with answering_health(bound):
            speakers = options.diarize is not False
            models = choose(options, logger.info, speakers=speakers)
            server = load_server(models, settings)
        server.run([bound])
        server.close()
    return server.exit_status


def load_server(models: ModelSettings, settings: ServerSettings) -> DrainingServer:
    """Return a server that does not listen yet. Raises StartError, SystemExit for a model."""
    gate, endpoint = load_app(models, settings)
    return DrainingServer(gate, endpoint, settings.drain_timeout, settings.page)


def load_app(models: ModelSettings, settings: ServerSettings) -> tuple[Gate, Endpoint]:
    for line in misspelt_variables(ServerSettings):
        logger.warning(line)
    store = None
    if settings.data_dir is not None:
        most_bytes = settings.max_job_bytes
        store = JobStore(settings.data_dir, settings.max_jobs, most_bytes, time.time())
    limits = Limits(settings.max_rows, shared=True)
    endpoint = load_endpoint(models, limits=limits, max_decoded_bytes=settings.max_decoded_bytes)
    return create_app(endpoint, settings, LiveDrivers(endpoint), store), endpoint
