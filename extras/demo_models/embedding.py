"""The demo's speaker embedding: WeSpeaker's ResNet34 in pyannote's class, trained as a classifier.

Training matches use: windows hold several voices, and the embedding of a voice pools the frames
where it speaks alone. The loss is additive angular margin softmax (Deng et al., "ArcFace", CVPR
2019).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from pyannote.audio.core.task import Problem, Resolution, Specifications
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from torch import Tensor, nn
from torch.nn import functional

from extras.demo_models.mixtures import SPEAKERS_A_VOICE, VOICES_A_SCENE, Bank, compose, stack
from extras.demo_models.training import train
from whosaid.timebase import SAMPLE_RATE

STEPS, BATCH, PEAK_RATE = 1400, 24, 1e-3
# The first third of training has one voice a window: from several, an untrained network learns
# nothing.
SINGLE_SECONDS, SINGLE_ODDS = (2.0, 2.0), (0.0, 1.0)
SECONDS, ODDS = (2.0, 3.0), (0.0, 0.3, 0.5, 0.2)
SCALE, MARGIN = 20.0, 0.2
MIN_FRAMES = 3  # a voice needs this many frames of 0.16 s alone to enter the loss


class VoiceClassifier(nn.Module):
    """The embedding network and a class weight for each speaker of the bank.

    A weight is the sum of one of the voice and one of the speaker (accent, pitch and speed), so
    that the few voices are learned first and the many speakers within them after.
    """

    def __init__(self, speakers: int) -> None:
        super().__init__()
        # 32 mel bands every 20 ms: a fifth of the usual 80 every 10 ms, at a fifth of the cost.
        self.network = WeSpeakerResNet34(num_mel_bins=32, frame_shift=20)
        self.network.specifications = Specifications(
            Problem.REPRESENTATION, Resolution.CHUNK, duration=SECONDS[1]
        )
        self.voices = nn.Parameter(
            torch.randn(speakers // SPEAKERS_A_VOICE, self.network.dimension)
        )
        self.details = nn.Parameter(torch.zeros(speakers, self.network.dimension))

    def embed(self, waveforms: Tensor, alone: Tensor) -> Tensor:
        """Embeddings (batch, voices, 256) of each voice of each window.

        `waveforms` (batch, 1, samples); `alone` (batch, voices, frames) is 1 if a voice speaks
        alone.
        """
        with torch.no_grad():
            bands = self.network.compute_fbank(waveforms)
        with torch.autocast("cpu", torch.bfloat16):
            frames = self.network.resnet.forward_frames(bands)
        return torch.as_tensor(
            self.network.resnet.seg_1(weighted_statistics(frames.float().flatten(1, 2), alone))
        )

    def loss(self, embeddings: Tensor, speakers: Tensor, margin: float) -> Tensor:
        """Additive angular margin softmax of embeddings (n, 256) with true `speakers` (n,)."""
        directions = self.voices.repeat_interleave(SPEAKERS_A_VOICE, 0) + self.details
        cosine = functional.linear(
            functional.normalize(embeddings), functional.normalize(directions)
        )
        target = functional.one_hot(speakers, len(directions)).bool()
        angle = cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos()
        penalised = (angle + margin).clamp(max=math.pi).cos()
        return functional.cross_entropy(SCALE * torch.where(target, penalised, cosine), speakers)


def train_embedding(bank: Bank, steps: int) -> WeSpeakerResNet34:
    model = VoiceClassifier(len(bank))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def draw(step: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        alone_yet = step < STEPS / 3
        between, odds = (SINGLE_SECONDS, SINGLE_ODDS) if alone_yet else (SECONDS, ODDS)
        seconds = round(rng.uniform(*between), 1)
        scenes = [compose(bank, rng, seconds, odds) for _ in range(BATCH)]
        frames = model.network.num_frames(round(seconds * SAMPLE_RATE))
        waveforms, active = stack(scenes, (np.arange(frames) + 0.5) * seconds / frames)
        alone = active * (active.sum(-1, keepdim=True) == 1)
        cast = [(*scene.cast, 0, 0)[:VOICES_A_SCENE] for scene in scenes]
        return waveforms, alone.transpose(1, 2), torch.tensor(cast)

    def loss_of(step: int, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        waveforms, alone, speakers = batch
        enough = alone.sum(-1) >= MIN_FRAMES
        margin = MARGIN * min(1.0, max(0.0, 3 * step / STEPS - 1))
        return model.loss(model.embed(waveforms, alone)[enough], speakers[enough], margin)

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    train(model, draw, loss_of, [optimizer], steps)
    return model.network


def weighted_statistics(frames: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean and deviation, (batch, channels, frames) to (batch, voices, 2 channels).

    Like pyannote's StatsPool, with variances clamped: the gradient of the square root of zero is
    infinite.
    """
    total = weights.sum(-1)[:, :, None] + 1e-8
    mean = torch.einsum("bcf,bvf->bvc", frames, weights) / total
    square = torch.einsum("bcf,bvf->bvc", frames.square(), weights) / total
    unbiased = total / (total - weights.square().sum(-1)[:, :, None] / total + 1e-8)
    return torch.cat([mean, ((square - mean.square()).clamp(min=1e-6) * unbiased).sqrt()], dim=-1)
