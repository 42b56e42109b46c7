"""Differences between the library releases in the two servers' containers, one function each.

hf-serve has Python 3.12, torch 2.11 or later, transformers 5, huggingface_hub 2 and pyannote.audio
4. huggingface-inference-toolkit has Python 3.11, torch 2.5, transformers 4.51, huggingface_hub 0.30
and pyannote.audio 3.4. No other module looks up versions. The functions import the libraries, so
that importing this module loads none of them.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Callable, Container, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from whosaid.errors import StartError

if TYPE_CHECKING:
    import torch

# The servers, by the module that their processes have imported.
SERVERS = {"hf_serve": "hf-serve", "huggingface_inference_toolkit": "huggingface-inference-toolkit"}
LIBRARIES = ("torch", "transformers", "pyannote.audio")
UNKNOWN = "unknown"
# A file of a Hub repository: https://huggingface.co/owner/name/resolve/main/config.json
FILE_URL = re.compile(r"https?://[^/]+/(?P<repository>[^/]+/[^/]+)/resolve/")


def describe_versions(modules: Container[str] = sys.modules) -> str:
    """Return the versions of Python, the libraries and the server of this process, for the log."""
    servers = [name for module, name in SERVERS.items() if module in modules]
    found = versions((*LIBRARIES, *servers)).items()
    return ", ".join(name if release == UNKNOWN else f"{name} {release}" for name, release in found)


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of Python and of libraries, `UNKNOWN` for those without metadata."""
    found = {"Python": platform.python_version()}
    for name in libraries:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = UNKNOWN
    return found


def opening_arguments() -> dict[str, str]:
    """Return arguments with which `av.open` reads tags that are not UTF-8; PyAV 19 needs none."""
    return {} if _release("av") >= (19, 0) else {"metadata_errors": "replace"}


def dtype_argument(dtype: torch.dtype) -> dict[str, Any]:
    """Return the dtype argument of `from_pretrained`, renamed in transformers 4.56."""
    return {"dtype" if _release("transformers") >= (4, 56) else "torch_dtype": dtype}


def tokenizer_arguments() -> dict[str, Any]:
    """Return extra arguments of `AutoTokenizer.from_pretrained`: earlier releases fail on the list
    of special tokens that transformers 5 saves; they are in `tokenizer.json` too.
    """
    return {} if _release("transformers") >= (5, 0) else {"extra_special_tokens": {}}


def nemotron_speaker_cache(name: str) -> Any:  # noqa: ANN401
    """Return Nemotron's speaker cache class. Raises StartError before transformers 5.18."""
    if _release("transformers") < (5, 18):
        raise StartError(
            f"{name} needs transformers 5.18 or newer, and here is {version('transformers')}: "
            "deploy under a newer hf-serve, or name a pipeline of pyannote's"
        )
    from transformers import Nemotron3DiarizationSpeakerCache

    return Nemotron3DiarizationSpeakerCache


def refused_repository(error: BaseException) -> str | None:
    """Return the repository that a huggingface_hub exception is about, before 1.0 by its URL."""
    named: str | None = getattr(error, "repo_id", None)
    found = FILE_URL.match(str(getattr(getattr(error, "response", None), "url", "")))
    return named or (found["repository"] if found else None)


def load_pyannote_pipeline(name: str, revision: str | None, token: str | None) -> Any:  # noqa: ANN401
    """Return `Pipeline.from_pretrained` of pyannote.audio 4, or its equivalent for 3; may be None.
    3 also clusters embeddings of a few frames, so a folder may hold a `config.pyannote-3.yaml`. 3
    only prints the Hub's refusals; files are downloaded here, so that refusals are raised.
    """
    import pyannote.audio

    pipelines: Any = pyannote.audio.Pipeline
    if _release("pyannote.audio") >= (4, 0):
        return pipelines.from_pretrained(name, revision=revision, token=token)
    file = _config_in_folder(Path(name))
    file = file or _download_for_pyannote_3(name, "config.yaml", revision, token)
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(_config_for_pyannote_3(name, file, token), encoding="utf-8")
        pipeline = pipelines.from_pretrained(config, use_auth_token=token)
    if hasattr(pipeline, "reconstruct"):
        _add_exclusive(pipeline)
    return pipeline


def build_pyannote_pipeline(folder: Path, load_network: Callable[[Path], Any]) -> Any:  # noqa: ANN401
    """Return a folder's SpeakerDiarization, its networks by `load_network`. Raises StartError."""
    import yaml
    from pyannote.audio.pipelines import SpeakerDiarization

    file = _config_in_folder(folder)
    config = yaml.safe_load(file.read_text(encoding="utf-8")) if file else {}
    if not str(config.get("pipeline", {}).get("name")).endswith(".SpeakerDiarization"):
        raise StartError(f"{folder} has no config.yaml of a SpeakerDiarization")
    params = config["pipeline"]["params"]
    before_4 = _release("pyannote.audio") < (4, 0)
    if before_4:
        _leave_out_what_4_brought(str(folder), params)
    for part in {"segmentation", "embedding", "plda"} & params.keys():
        place = str(params[part]).replace("$model", str(folder))
        params[part] = place if part == "plda" else load_network(Path(place))
    pipeline: Any = SpeakerDiarization(**params)
    pipeline.instantiate(config["params"])
    if before_4:
        _add_exclusive(pipeline)
    return pipeline


def _config_in_folder(folder: Path) -> Path | None:
    """Return the configuration for the installed release, None if the folder has none."""
    before_4 = _release("pyannote.audio") < (4, 0)
    names = ("config.pyannote-3.yaml", "config.yaml")[0 if before_4 else 1 :]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _config_for_pyannote_3(name: str, file: Path, token: str | None) -> str:
    """Return a configuration with files for 4's `$model/part`. Raises StartError if it needs 4."""
    import yaml

    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    params = config["pipeline"]["params"]
    _leave_out_what_4_brought(name, params)
    for part in ("segmentation", "embedding"):
        model = str(params.get(part)).replace("$model", str(file.parent))
        if Path(model).is_dir():
            params[part] = {"checkpoint": f"{model}/pytorch_model.bin", "strict": False}
        elif model.startswith("pyannote/"):
            repository, _, revision = model.partition("@")
            _download_for_pyannote_3(repository, "pytorch_model.bin", revision or None, token)
    return str(yaml.safe_dump(config))


def _leave_out_what_4_brought(name: str, params: dict[str, Any]) -> None:
    """Remove the parameters that pyannote.audio 3 lacks. Raises StartError if the pipeline clusters
    by PLDA, or has parts in a Hub repository, which 3 cannot find.
    """
    in_folder = any("$model/" in str(value) for value in params.values())
    if params.get("clustering") == "VBxClustering" or (in_folder and not Path(name).is_dir()):
        raise StartError(
            f"{name} is a pipeline for pyannote.audio 4, and here is {version('pyannote.audio')}: "
            "name pyannote/speaker-diarization-3.1, or deploy under hf-serve"
        )
    for name_in_4 in ("plda", "legacy"):
        params.pop(name_in_4, None)


def crop_window(audio: Any, file: Any, window: Any) -> torch.Tensor:  # noqa: ANN401
    """Return `window` of a file, (1, samples), cropped by a `pyannote.audio.Audio`. Without the
    duration pyannote.audio 3 may crop a sample too many.
    """
    exact = {} if _release("pyannote.audio") >= (4, 0) else {"duration": window.duration}
    samples: torch.Tensor = audio.crop(file, window, mode="pad", **exact)[0]
    return samples


def _add_exclusive(pipeline: Any) -> None:  # noqa: ANN401
    """Make a SpeakerDiarization of pyannote.audio 3 return the output of 4: also
    `exclusive_speaker_diarization`, of the same windows with at most one speaker a frame, and
    `speaker_embeddings` with a row for each of the turns' labels.
    """
    aggregate, annotate, apply = pipeline.to_diarization, pipeline.to_annotation, pipeline.apply
    kept: dict[str, Any] = {}

    def keep_windows(windows: Any, count: Any) -> Any:  # noqa: ANN401
        kept["windows"] = windows, count
        return aggregate(windows, count)

    def keep_labels(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        annotation = annotate(*arguments, **options)
        kept["labels"], kept["options"] = annotation.labels(), options
        return annotation

    def apply_both(file: Any, **options: Any) -> Any:  # noqa: ANN401
        kept.clear()
        turns, embeddings = apply(file, **options, return_embeddings=True)
        if not kept:  # nobody speaks
            return turns
        windows, count = kept["windows"]
        count.data = count.data.clip(max=1)
        exclusive = annotate(aggregate(windows, count), **kept["options"])
        names = dict(zip(kept["labels"], pipeline.classes(), strict=False))
        return SimpleNamespace(
            speaker_diarization=turns,
            exclusive_speaker_diarization=exclusive.rename_labels(mapping=names),
            speaker_embeddings=embeddings,
        )

    pipeline.to_diarization, pipeline.to_annotation = keep_windows, keep_labels
    pipeline.apply = apply_both


def _download_for_pyannote_3(
    repository: str, file: str, revision: str | None, token: str | None
) -> Path:
    """Download a file into the cache in which pyannote.audio 3 looks for it."""
    from huggingface_hub import hf_hub_download
    from pyannote.audio.core import model

    cache: str = vars(model)["CACHE_DIR"]
    return Path(hf_hub_download(repository, file, revision=revision, token=token, cache_dir=cache))


@cache
def _release(package: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version(package))[:2]
    return int(major), int(minor)
