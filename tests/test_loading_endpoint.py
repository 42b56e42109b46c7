LOADING
# ---- the start


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, "START_FAILED: ASR_MODEL: is required"),
        ({"ASR_MODEL": "/no/such"}, "START_FAILED: ASR_MODEL: neither a hub id"),
        (
            {"ASR_MODEL": "owner/model"},
            "START_FAILED: ASR_MODEL=owner/model: the hub cannot be reached",
        ),
        ({"ASR_MODEL": "tests"}, "START_FAILED: ASR_MODEL=.*could not be loaded"),
    ],
)
def test_a_start_that_must_fail_ends_the_process_with_one_line(monkeypatch, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"^{line}") as caught:
        EndpointHandler("")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field_name", ["assistant_model", "diarization_model"])
def test_the_line_names_the_variable_of_the_model_at_fault(whisper_folder, tmp_path, field_name):
    settings = ModelSettings(asr_model=str(whisper_folder), **{field_name: str(tmp_path)})
    with pytest.raises(SystemExit, match=f"^START_FAILED: {field_name.upper()}[=:]"):
        EndpointHandler(settings=settings)


LOST = getattr(torch, "AcceleratorError", RuntimeError)(
    "CUDA error: an illegal memory access was encountered"
)


class FirstStarts:
    """Stands in for Transcriber on CUDA: a start with graphs raises `error`."""

    def __init__(self, error):
        self.error, self.starts = error, []

    def __call__(self, models, cuda_graphs):
        self.starts.append(cuda_graphs)
        return SimpleNamespace(warm_up=lambda: self.warm_up(cuda_graphs))

    def warm_up(self, cuda_graphs):
        if cuda_graphs:
            raise self.error


@pytest.fixture
def first_starts(monkeypatch):
    """Makes the start on CUDA fail; returns the stand-in, and what restarts were asked for."""

    def make(error):
        starts, restarts = FirstStarts(error), []
        monkeypatch.setattr("asr.startup.Transcriber", starts)
        monkeypatch.setattr(handler, "restart_without_graphs", restarts.append)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        on_cuda = SimpleNamespace(device=torch.device("cuda"))
        monkeypatch.setattr(handler, "load_whisper", lambda *_: on_cuda)
        return starts, restarts

    return make


def test_what_fails_with_graphs_is_tried_without_them(first_starts, caplog):
    starts, restarts = first_starts(RuntimeError("captures do not work here"))
    EndpointHandler(settings=ModelSettings(asr_model="owner/model"))
    assert (starts.starts, restarts) == ([True, False], [])
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "CRITICAL")
    assert "the start failed (RuntimeError: captures do not work here)" in line
    assert "WITHOUT CUDA graphs" in line


@pytest.mark.parametrize("serves", [True, False])
def test_where_the_device_is_lost_at_the_start_a_new_process_is_wanted(first_starts, serves):
    starts, restarts = first_starts(LOST)
    settings = ModelSettings(asr_model="owner/model")
    with pytest.raises(SystemExit, match="illegal memory access"):
        EndpointHandler(settings=settings, serves=serves)
    assert starts.starts == [True]
    assert len(restarts) == serves


def test_without_graphs_nothing_is_tried_again(first_starts):
    starts, restarts = first_starts(LOST)
    starts.warm_up = lambda _: (_ for _ in ()).throw(LOST)
    with pytest.raises(SystemExit, match="illegal memory access"):
        EndpointHandler(settings=ModelSettings(asr_model="owner/model", cuda_graphs=False))
    assert (starts.starts, restarts) == ([False], [])


def test_a_server_may_import_the_file_by_its_path_from_anywhere(tmp_path):
    script = (
        "import importlib.util, os, sys\n"
        f"path = {str(REPOSITORY / 'handler.py')!r}\n"
        "spec = importlib.util.spec_from_file_location('handler', path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'handler' not in sys.modules and 'pyannote.audio' not in sys.modules\n"
        "module.EndpointHandler('/repository')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "START_FAILED: ASR_MODEL: is required\n")



LOGPART
# ---- the log


def test_hf_serves_log_of_the_body_is_cut(caplog, tiny_handler, hum):
    logger = logging.getLogger("hf-serve")
    with caplog.at_level(logging.INFO):
        logger.info(
            f"[abc] Received request with: {{'inputs': '{hum}'}}"
        )  # as hf_serve.routers.custom writes it
        logger.info("another %s", "line")
    assert caplog.messages == ["[abc] Received request, body not logged", "another line"]


def test_the_filter_is_there_once_however_often_the_endpoint_is_made(whisper_folder):
    for _ in range(2):
        EndpointHandler(settings=ModelSettings(asr_model=str(whisper_folder)))
    assert logging.getLogger("hf-serve").filters.count(server_logs.hide_body) == 1


def test_our_log_counts_and_times(tiny_handler, hum, caplog):
    with caplog.at_level(logging.INFO, logger="endpoint"):
        response = tiny_handler({"inputs": hum})
    assert "1.0 s of audio answered in" in caplog.text
    assert response["text"]
    assert response["text"] not in caplog.text


def test_requests_at_once_are_answered_as_one_after_another(tiny_handler, hum):
    bodies = [
        {
            "inputs": hum,
            "parameters": {
                "assisted": assisted,
                "language": language,
                "return_timestamps": timestamps,
            },
        }
        for assisted in (False, True)
        for language in ("en", None)
        for timestamps in (True, False)
    ]
    serial = [tiny_handler(body) for body in bodies]
    answers: list[dict] = [{}] * len(bodies)

    def ask(index: int) -> None:
        with contextlib.suppress(Exception):
            answers[index] = tiny_handler(bodies[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == serial
