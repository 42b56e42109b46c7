"""Makes the weights of the demo's diarization folder: segmentation, embedding and PLDA.

Stock pyannote.audio loads the folder with `Pipeline.from_pretrained`; it holds no code. Its two
configurations, for pyannote.audio 4 and 3, are written by hand. Weights are float16, and SHA256SUMS
lists the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from pyannote.audio import Model
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from scipy.linalg import eigh

from extras.demo_models.embedding import STEPS as EMBEDDING_STEPS
from extras.demo_models.embedding import train_embedding
from extras.demo_models.mixtures import Bank, speak_bank
from extras.demo_models.segmentation import STAGES, train_segmentation
from extras.demo_models.whisper import write_checksums

SEGMENTATION_STEPS, PLDA_DIMENSION = STAGES[-1][0], 64
Matrix = NDArray[np.float64]


def build(folder: Path, steps: int | None = None) -> None:
    """Train both networks, each for all its `steps`, and write the pipeline's weights."""
    bank = speak_bank()
    segmenter = train_segmentation(bank, steps or SEGMENTATION_STEPS)
    embedder = train_embedding(bank, steps or EMBEDDING_STEPS)
    save_model(segmenter, folder / "segmentation")
    save_model(embedder, folder / "embedding")
    save_plda(*embed_clips(embedder, bank), folder / "plda")
    write_checksums(folder)


def save_model(model: Model, folder: Path) -> None:
    """Write the checkpoint that `Model.from_pretrained(folder)` loads, parameters in float16.

    Buffers stay as they are: SincNet's time axis is one, and rounding it would detune its filters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = model.state_dict()
    weights |= {
        name: parameter.detach().half().contiguous() for name, parameter in model.named_parameters()
    }
    checkpoint: dict[str, Any] = {
        "state_dict": dict(weights),
        "hyper_parameters": dict(model.hparams),
        "pytorch-lightning_version": lightning.__version__,
    }
    model.on_save_checkpoint(checkpoint)  # type: ignore[no-untyped-call]
    # pyannote.audio 4 leaves this out; 3 fails without it.
    checkpoint["pyannote.audio"]["versions"]["torch"] = torch.__version__
    torch.save(checkpoint, folder / "pytorch_model.bin")


def embed_clips(network: WeSpeakerResNet34, bank: Bank) -> tuple[Matrix, NDArray[np.int64]]:
    """Embeddings (clips, 256) of every third clip of each speaker, and their speakers (clips,)."""
    chosen = [(speaker, clip) for speaker, clips in enumerate(bank) for clip in clips[::3]]
    with torch.inference_mode():
        vectors = [
            network(torch.from_numpy(clip)[None, None])[0].double().numpy() for _, clip in chosen
        ]
    return np.stack(vectors), np.array([speaker for speaker, _ in chosen])


def save_plda(vectors: Matrix, speaker: NDArray[np.int64], folder: Path) -> None:
    """Write the file that `pyannote.audio.core.plda.PLDA` reads: centring, LDA, a two-covariance
    model.

    Ioffe, "Probabilistic linear discriminant analysis", ECCV 2006. `vectors` (n, dimension),
    `speaker` (n,).
    """
    folder.mkdir(parents=True, exist_ok=True)
    mean = vectors.mean(axis=0)
    scaled = np.sqrt(vectors.shape[1]) * _unit(vectors - mean)
    within, between = _covariances(scaled, speaker)
    lda = eigh(between, within)[1][:, ::-1][:, :PLDA_DIMENSION]
    projected = scaled @ lda
    centre = projected.mean(axis=0)
    features = np.sqrt(PLDA_DIMENSION) * _unit(projected - centre)
    within, between = _covariances(features, speaker)
    spread, axes = eigh(between, within)
    np.savez(folder / "xvec_transform.npz", mean1=mean, mean2=centre, lda=lda)
    np.savez(
        folder / "plda.npz",
        mu=features.mean(axis=0),
        tr=axes.T[::-1],
        psi=np.maximum(spread[::-1], 1e-6),
    )


def _covariances(vectors: Matrix, speaker: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    """Covariances within and between speakers; each speaker has the same weight."""
    names = np.unique(speaker)
    means = np.stack([vectors[speaker == name].mean(axis=0) for name in names])
    deviations = vectors - means[np.searchsorted(names, speaker)]
    within = deviations.T @ deviations / (len(vectors) - len(names))
    return within + 1e-4 * np.trace(within) / len(within) * np.eye(len(within)), np.cov(means.T)


def _unit(vectors: Matrix) -> Matrix:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
