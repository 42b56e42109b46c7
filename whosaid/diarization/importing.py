"""Imports pyannote.audio without packages that only training, evaluation and tuning need.

While pyannote's modules are executed, their `import` statements give a `Deferred` for a package in
`DEFERRED`, which imports it at first use. `sys.modules` never holds a Deferred, so no other module
can import one.

`pyannote.audio.Model` derives from lightning's LightningModule. `InferenceModule` takes its place,
so in this process pyannote's models and tasks cannot be trained.
"""

import builtins
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Self

import torch

from whosaid.runtime.errors import is_out_of_memory

PYANNOTE = "pyannote"
DEFERRED = {
    *("lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics"),
    *("torch_audiomentations", "pytorch_metric_learning", "meeteval"),
    *("sklearn", "pandas", "matplotlib", "networkx"),
    *("optuna", "scipy.signal", "scipy.stats", "onnxruntime", "speechbrain", "torchcodec"),
    *("opentelemetry.exporter", "opentelemetry.sdk"),
    *("pyannote.audio.core.calibration", "pyannote.audio.tasks"),
}


class Hyperparameters(dict[str, Any]):
    """Entries that are attributes too."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name not in self:
            raise AttributeError(name)
        return self[name]


class InferenceModule(torch.nn.Module):
    """Replaces lightning's LightningModule for models that are loaded and evaluated only."""

    def save_hyperparameters(self, *names: str) -> None:
        """Put the caller's local variables `names` into `hparams`."""
        values = sys._getframe(1).f_locals
        self.hparams.update({name: values[name] for name in names})

    @property
    def hparams(self) -> Hyperparameters:
        hparams: Hyperparameters = vars(self).setdefault("_hparams", Hyperparameters())
        return hparams

    @property
    def device(self) -> torch.device:
        return next((each.device for each in self.parameters()), torch.device("cpu"))

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,  # noqa: ANN401
        map_location: Any = None,  # noqa: ANN401
        strict: bool = True,
        weights_only: bool | None = None,
        **arguments: Any,  # noqa: ANN401
    ) -> Self:
        """Build the network from the arguments in lightning's checkpoint, and load its weights."""
        checkpoint = torch.load(
            checkpoint_path, map_location=map_location, weights_only=weights_only
        )
        arguments = checkpoint.get("hyper_parameters", {}) | arguments
        taken = arguments.keys() & inspect.signature(cls).parameters
        network: Any = cls(**{name: arguments[name] for name in taken})
        network.on_load_checkpoint(checkpoint)
        network.load_state_dict(checkpoint["state_dict"], strict=strict)
        loaded: Self = network
        return loaded


# What takes the place of lightning's function or class of that name.
REPLACED: dict[str, object] = {
    "LightningModule": InferenceModule,
    "_load": torch.load,
    "is_oom_error": is_out_of_memory,
}


class Deferred:
    """A module, or something of one. During the import of pyannote its attributes and calls give
    another Deferred; later they are those of the real thing, which is then imported.
    """

    def __init__(self, name: str, real: Callable[[], Any]) -> None:
        self._name, self._real = name, cache(real)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "__version__":
            return importlib.metadata.version(self._name)
        if _Importing.now and not name.startswith("__"):
            deferred = Deferred(f"{self._name}.{name}", lambda: getattr(self._real(), name))
            return REPLACED.get(name, deferred)
        return getattr(self._real(), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if _Importing.now:
            return Deferred(self._name, lambda: self._real()(*arguments, **named))
        return self._real()(*arguments, **named)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real())

    def __or__(self, other: object) -> object:  # in annotations
        return Any

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()


class _Importing:
    """Finds pyannote's modules and has them executed with `_import` for `import` statements."""

    now = False

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != PYANNOTE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": _import}
        super().exec_module(module)


def _import(
    name: str,
    globals_: Any = None,  # noqa: ANN401
    locals_: Any = None,  # noqa: ANN401
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> Any:  # noqa: ANN401
    real = partial(builtins.__import__, name, globals_, locals_, fromlist, level)
    if _Importing.now and level == 0:
        for package in DEFERRED:
            if f"{name}.".startswith(f"{package}.") and _is_deferred(package):
                return Deferred(name, real)
    return real()


@cache
def _is_deferred(package: str) -> bool:
    return package not in sys.modules and find_spec(package) is not None


def import_pyannote(modules: Sequence[str]) -> None:
    """Import `modules` of pyannote without DEFERRED; plainly if they use such a package at once."""
    before = set(sys.modules)
    sys.meta_path.insert(0, _Importing)
    _Importing.now = True
    try:
        for module in modules:
            import_module(module)
    except Exception:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == PYANNOTE:
                del sys.modules[name]
    finally:
        _Importing.now = False
        sys.meta_path.remove(_Importing)
    for module in modules:
        import_module(module)
