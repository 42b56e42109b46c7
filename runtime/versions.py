"""What differs between the releases of libraries that the two servers' containers hold.

hf-serve's has Python 3.12 with torch 2.11 or later, transformers 5, huggingface_hub 2 and
pyannote.audio 4; huggingface-inference-toolkit's has Python 3.11 with torch 2.5, transformers 4.51,
huggingface_hub 0.30 and pyannote.audio 3.4. Nothing else in the repository asks for a version. Each
difference is one function here, named after what is wanted; it imports the libraries itself, so
that importing this module loads none of them.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Container, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from errors import StartError

if TYPE_CHECKING:
    import torch
    from av.container import InputContainer
    from transformers import WhisperFeatureExtractor

# The servers by the module that a process of theirs has imported.
SERVERS = {"hf_serve": "hf-serve", "huggingface_inference_toolkit": "huggingface-inference-toolkit"}
LIBRARIES = ("torch", "transformers", "pyannote.audio")
# The Hub's file of a repository: https://huggingface.co/owner/name/resolve/main/config.json
FILE_URL = re.compile(r"https?://[^/]+/(?P<repository>[^/]+/[^/]+)/resolve/")


def describe_versions(modules: Container[str] = sys.modules) -> str:
    """Python, the libraries and, if it is another's, the server of this process, for one line of
    the log.
    """
    servers = [name for module, name in SERVERS.items() if module in modules]
    parts = (f"{name} {_version(name)}".strip() for name in (*LIBRARIES, *servers))
    return ", ".join((f"Python {platform.python_version()}", *parts))


def open_container(file: IO[bytes], options: dict[str, str]) -> InputContainer:
    """`av.open`, for files whose tags are not UTF-8 too: PyAV 19 reads them in any case, before it
    has to be asked to.
    """
    import av

    opener: Any = av.open
    lenient = {} if _release("av") >= (19, 0) else {"metadata_errors": "replace"}
    container: InputContainer = opener(file, mode="r", options=options, **lenient)
    return container


def dtype_argument(dtype: torch.dtype) -> dict[str, Any]:
    """How `from_pretrained` is told the dtype: `torch_dtype` until transformers 4.56 renamed it."""
    return {"dtype" if _release("transformers") >= (4, 56) else "torch_dtype": dtype}


def tokenizer_arguments() -> dict[str, Any]:
    """What `AutoTokenizer.from_pretrained` needs beside the checkpoint.

    transformers 5 writes the special tokens into `tokenizer_config.json` as a list under a name
    that means something else until then, and 4.51 fails at it. They are in `tokenizer.json` too.
    """
    return {} if _release("transformers") >= (5, 0) else {"extra_special_tokens": {}}


def load_feature_extractor(source: Mapping[str, Any]) -> WhisperFeatureExtractor:
    """`AutoFeatureExtractor.from_pretrained` of a Whisper, with the arguments of `source`.

    transformers 5 saves it in the processor's `processor_config.json`, where 4.51 does not look.
    """
    from transformers import AutoFeatureExtractor, WhisperFeatureExtractor
    from transformers.utils.hub import cached_file

    try:
        loaded: WhisperFeatureExtractor = AutoFeatureExtractor.from_pretrained(**source)
    except OSError:
        stated = cached_file(
            source["pretrained_model_name_or_path"],
            "processor_config.json",
            revision=source.get("revision"),
            token=source.get("token"),
            _raise_exceptions_for_missing_entries=False,
        )
        processor = json.loads(Path(stated).read_text(encoding="utf-8")) if stated else {}
        if "feature_extractor" not in processor:
            raise
        loaded = WhisperFeatureExtractor(**processor["feature_extractor"])
    return loaded


def nemotron_speaker_cache(name: str) -> Any:  # noqa: ANN401
    """The class of the speaker cache of Nemotron-3-Diarization, which transformers 5.18 brought.

    Raises StartError about the model `name` where transformers is older.
    """
    if _release("transformers") < (5, 18):
        raise StartError(
            f"{name} needs transformers 5.18 or newer, and here is {version('transformers')}: "
            "deploy under a newer hf-serve, or name a pipeline of pyannote's"
        )
    from transformers import Nemotron3DiarizationSpeakerCache

    return Nemotron3DiarizationSpeakerCache


def is_accelerator_error(error: BaseException) -> bool:
    """Whether it is `torch.AcceleratorError`, which torch 2.9 brought.

    Before, an error of CUDA's is a RuntimeError that begins "CUDA error".
    """
    import torch

    kind: type[Exception] | None = getattr(torch, "AcceleratorError", None)
    return kind is not None and isinstance(error, kind)


def refused_repository(error: BaseException) -> str | None:
    """The repository that an exception of huggingface_hub is about: its `repo_id` from 1.0 on, and
    before that the one in the URL of its response.
    """
    named: str | None = getattr(error, "repo_id", None)
    found = FILE_URL.match(str(getattr(getattr(error, "response", None), "url", "")))
    return named or (found["repository"] if found else None)


def load_pyannote_pipeline(name: str, revision: str | None, token: str | None) -> Any:  # noqa: ANN401
    """`Pipeline.from_pretrained` of pyannote.audio 4, or of 3, whose arguments are others.

    A folder may hold a `config.pyannote-3.yaml` beside its `config.yaml`: clustering in 3 takes
    embeddings of a few frames too, so that a threshold of 4 may not suit it.

    pyannote.audio 3 prints the Hub's refusals and goes on with None, so its files are fetched here,
    where the refusals are exceptions. Returns None as pyannote does.
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
    """The SpeakerDiarization of a local folder, as `load_pyannote_pipeline` has it, with networks
    that `load_network` makes of their folders.

    Raises StartError where the folder's pipeline is of another kind or for another release.
    """
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
    """The pipeline's configuration for this release, if it is in the folder."""
    newest = _release("pyannote.audio") >= (4, 0)
    names = ("config.yaml",) if newest else ("config.pyannote-3.yaml", "config.yaml")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _config_for_pyannote_3(name: str, file: Path, token: str | None) -> str:
    """The pipeline's configuration with each `$model/part`, which pyannote.audio 4 introduced, as
    the part's file.

    Raises StartError where the pipeline is one for pyannote.audio 4.
    """
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
    """Take out the PLDA, which pyannote.audio 3 lacks.

    Raises StartError where the pipeline clusters by it, or where its parts are in a repository of
    the Hub, in which pyannote.audio 3 cannot look.
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
    """`window` of a file, (1, samples), by `pyannote.audio.Audio`.

    Windows that begin between two samples are as long as all others in pyannote.audio 4; in 3 they
    may have one more, unless it is told the duration.
    """
    exact = {} if _release("pyannote.audio") >= (4, 0) else {"duration": window.duration}
    samples: torch.Tensor = audio.crop(file, window, mode="pad", **exact)[0]
    return samples


def _add_exclusive(pipeline: Any) -> None:  # noqa: ANN401
    """Let a SpeakerDiarization of pyannote.audio 3 return what that of 4 does: besides the turns
    `exclusive_speaker_diarization`, in which one speaker talks at a time.

    As in pyannote.audio 4, the same clusters are reconstructed with at most one speaker a frame,
    and `speaker_embeddings` has a row for each of the turns' labels.
    """
    reconstruct, annotate, apply = pipeline.reconstruct, pipeline.to_annotation, pipeline.apply
    kept: dict[str, Any] = {}

    def keep_clusters(segmentations: Any, clusters: Any, count: Any) -> Any:  # noqa: ANN401
        kept["clusters"] = segmentations, clusters, count
        return reconstruct(segmentations, clusters, count)

    def keep_labels(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        annotation = annotate(*arguments, **options)
        kept["labels"], kept["options"] = annotation.labels(), options
        return annotation

    def apply_both(file: Any, **options: Any) -> Any:  # noqa: ANN401
        kept.clear()
        turns, embeddings = apply(file, **options, return_embeddings=True)
        if not kept:  # nobody speaks
            return turns
        segmentations, clusters, count = kept["clusters"]
        count.data = count.data.clip(max=1)
        exclusive = annotate(reconstruct(segmentations, clusters, count), **kept["options"])
        names = dict(zip(kept["labels"], pipeline.classes(), strict=False))
        return SimpleNamespace(
            speaker_diarization=turns,
            exclusive_speaker_diarization=exclusive.rename_labels(mapping=names),
            speaker_embeddings=embeddings,
        )

    pipeline.reconstruct, pipeline.to_annotation = keep_clusters, keep_labels
    pipeline.apply = apply_both


def _download_for_pyannote_3(
    repository: str, file: str, revision: str | None, token: str | None
) -> Path:
    """Fetch a file into pyannote.audio 3's own cache, where it looks for it."""
    from huggingface_hub import hf_hub_download
    from pyannote.audio.core import model

    cache: str = vars(model)["CACHE_DIR"]
    return Path(hf_hub_download(repository, file, revision=revision, token=token, cache_dir=cache))


@cache
def _release(package: str) -> tuple[int, int]:
    """Major and minor version of an installed package."""
    major, minor = re.findall(r"\d+", version(package))[:2]
    return int(major), int(minor)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
