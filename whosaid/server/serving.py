"""Serves with a command line and the environment, until SIGTERM or until the engine stops.

The port is bound before models are downloaded and loaded; meanwhile only probes are answered.
"""

import logging
from argparse import Namespace
from pathlib import Path

from config import ModelSettings, misspelt_variables
from handler import load_endpoint
from whosaid.asr import Limits
from whosaid.endpoint import Endpoint
from whosaid.errors import StartError
from whosaid.models.choice import choose
from whosaid.runtime.environment import state_folder
from whosaid.server.admission import is_loopback
from whosaid.server.app import create_app
from whosaid.server.clock import now
from whosaid.server.gate import Gate
from whosaid.server.jobs.store import JobStore
from whosaid.server.lifecycle import DrainingServer, answering_probes, bind, raise_file_limit
from whosaid.server.realtime.drivers import LiveDrivers
from whosaid.server.settings import ServerSettings
from whosaid.server.tracing import exporting

logger = logging.getLogger("server")


def serve(options: Namespace, settings: ServerSettings, user_jobs: bool = False) -> int:
    """Return the exit status. With `user_jobs` and no DATA_DIR, keep jobs in a folder of this user,
    if possible. Raises StartError, or SystemExit if a model does not load.
    """
    if warning := settings.warning:
        logger.warning(warning)
    raise_file_limit()
    with bind(settings) as bound:
        with answering_probes(bound, settings):
            models = choose(options, logger.info, speakers=options.diarize is not False)
            server = load_server(models, settings, user_jobs)
        with exporting(settings.otel_exporter_otlp_endpoint):
            server.run([bound])
            server.close()
    return server.exit_status


def load_server(
    models: ModelSettings, settings: ServerSettings, user_jobs: bool = False
) -> DrainingServer:
    """Return a server that does not listen yet. Raises StartError, SystemExit for a model."""
    gate, endpoint = load_app(models, settings, user_jobs)
    return DrainingServer(gate, endpoint, settings.drain_timeout, settings.page)


def load_app(
    models: ModelSettings, settings: ServerSettings, user_jobs: bool = False
) -> tuple[Gate, Endpoint]:
    for line in misspelt_variables(ServerSettings):
        logger.warning(line)
    store = None
    if settings.data_dir is not None:
        store = _open_jobs(settings.data_dir, settings)
    elif user_jobs:
        store = _open_user_jobs(settings)
    limits = Limits(settings.max_rows, shared=True)
    endpoint = load_endpoint(models, limits=limits, max_decoded_bytes=settings.max_decoded_bytes)
    return create_app(endpoint, settings, LiveDrivers(endpoint), store), endpoint


def _open_jobs(folder: Path, settings: ServerSettings) -> JobStore:
    return JobStore(folder, settings.max_jobs, settings.max_job_bytes, now())


def _open_user_jobs(settings: ServerSettings) -> JobStore | None:
    """Open this user's jobs for the port, whose page asks for them; if impossible, log why."""
    if not (settings.needs_key or is_loopback(settings.host.strip("[]"))):
        reason = "without a key every client could read them; --data-dir keeps them anyway"
    else:
        try:
            folder = state_folder() / "jobs" / str(settings.port)
            store = _open_jobs(folder, settings)
        except (StartError, RuntimeError) as error:
            reason = str(error).removeprefix(f"{StartError.code}: DATA_DIR=")
        else:
            logger.info("jobs are kept in %s", folder)
            return store
    logger.warning("no jobs are kept, so a closed tab ends its transcription: %s", reason)
    return None
