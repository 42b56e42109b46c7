"""Self-distillation: for a mixture, a conditioned encoder learns the frozen model's output for one
of its voices alone.

Two losses are added: the cross entropy of the frozen model's text of that voice, through the frozen
decoder, and the squared error of the encoder's output. Neither needs a transcript.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration

from extras.conditioning.masks import DiarizerMasks
from extras.conditioning.mixtures import WINDOWS, Piece, mix
from extras.medusa.hidden_states import save_whole
from tests.support.decoding import decode
from whosaid.asr import DecodeOptions, WhisperModels
from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.conditioning import PRODUCTS, Conditioning, read_conditioning, shapes
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import find_repetition
from whosaid.asr.engine.request import Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.frontend.target_speaker import OVERLAP, TARGET
from whosaid.asr.model import cpu_kernels
from whosaid.asr.model.encoder import AudioEncoder, LogMel
from whosaid.runtime.device import choose_dtype
from whosaid.timebase import SAMPLES_PER_TOKEN

BATCH = {300: 4, 750: 2, 1500: 2}  # mixtures in a step, which takes turns, by frames of the window
# The highest learning rates of transformations and low-rank updates; shares of the time for the
# rise and the fall.
TRANSFORM_RATE, UPDATE_RATE, LEAST_RATE, RISE, FALL = 1.5e-3, 7e-4, 0.03, 0.02, 0.4
SAVE_EVERY = 5 * 60  # seconds
LONGEST_TEXT, LEAST_LOGPROB = 110, -1.0  # tokens; a text that is less likely teaches nothing
IGNORED = -100  # F.cross_entropy's
OTHERS, BASIS = 2, 16  # the mask's column of other voices; pieces whose silence begins the training


@dataclass(frozen=True, eq=False)
class Target:
    """A piece with the frozen model's text, and the encoder's output (frames, d_model)."""

    piece: Piece
    tokens: list[int]
    output: Tensor


class Distillation:
    """The frozen model, the conditioning that is trained, and the losses."""

    def __init__(self, models: WhisperModels, rank: int, language: str, pipeline: str) -> None:
        assert models.checkpoint is not None
        cpu_kernels.AVAILABLE = False  # oneDNN's products have no gradient
        self.models, self.device, self.rank = models, models.device, rank
        self.lower = choose_dtype("auto", models.device) == torch.bfloat16
        self.parameters = new_parameters(models, rank)
        self.encoder = AudioEncoder(models.model, None, Conditioning(self.parameters))
        self.prompt = models.special_tokens.prompt(language, "transcribe", timestamps=False)
        network = WhisperForConditionalGeneration.from_pretrained(**models.checkpoint.source)
        self.network = network.float().requires_grad_(False).to(models.device).eval()
        self.masks = DiarizerMasks(pipeline)
        self.log_mel = {each: LogMel(models.feature_extractor, self.device) for each in WINDOWS}
        for frames, log_mel in self.log_mel.items():
            log_mel.n_samples = frames * SAMPLES_PER_TOKEN

    @torch.no_grad()
    def targets(self, pieces: Sequence[Piece], path: Path) -> list[Target]:
        """Return the pieces with usable texts as targets; `path` keeps the texts."""
        texts: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
        outputs = {
            each.name: self.encoder.forward(self.log_mel[each.frames]([each.window])).half()
            for each in pieces
        }
        requests = [
            Request(each.name, each.samples, self.prompt, LONGEST_TEXT, outputs[each.name].float())
            for each in pieces
            if each.name not in texts
        ]
        found, _ = decode(DecodeEngine(self.models), requests, DecodeOptions(timestamps=False))
        texts |= {str(name): self._usable(result) for name, result in found.items()}
        path.write_text(json.dumps(texts))
        targets = (Target(each, texts[each.name], outputs[each.name][0]) for each in pieces)
        return [each for each in targets if each.tokens]

    def _usable(self, result: DecodeResult) -> list[int]:
        unlikely = not result.ended or result.avg_logprob < LEAST_LOGPROB
        if unlikely or not result.tokens or find_repetition(result.tokens) is not None:
            return []
        return [*result.tokens, self.models.special_tokens.end_of_text]

    @torch.no_grad()
    def suppress_others(self, targets: Sequence[Target]) -> None:
        """Replace frames of other voices alone by the mean silent frame, as a start."""
        frames = []
        for each in (target.piece for target in targets[:BASIS]):
            silent = np.ones(each.frames, bool)
            silent[each.start :][: len(each.active)] = ~each.active
            features = self.encoder.convolved(self.log_mel[each.frames]([each.window]))
            frames.append(features[0, torch.from_numpy(silent).to(self.device)])
        self.parameters["fddt.0.weight"][OTHERS] = 0
        self.parameters["fddt.0.bias"][OTHERS] = torch.cat(frames).mean(dim=0)

    def losses(
        self, batch: Sequence[Target], others: Sequence[Piece], generator: np.random.Generator
    ) -> Tensor:
        """Return the mean cross entropy, and the mean distance of the encoder's outputs, (2,)."""
        mixtures = [mix(each.piece, others, generator) for each in batch]
        masks = np.stack([self.masks.of(each) for each in mixtures])
        mask = torch.from_numpy(masks).to(self.device)
        features = self.log_mel[batch[0].piece.frames]([each.samples for each in mixtures])
        read, wanted = self._texts([each.tokens for each in batch])
        chosen = wanted != IGNORED
        with torch.autocast(self.device.type, torch.bfloat16, self.lower):
            encoded = self.encoder.forward(features, mask)
            hidden = self.network.model.decoder(
                input_ids=read, encoder_hidden_states=encoded, use_cache=False
            ).last_hidden_state
            scores = self.network.proj_out(hidden[chosen]).float()
        encoded = encoded.float()
        cross_entropy = F.cross_entropy(scores, wanted[chosen])
        outputs = torch.stack([each.output for each in batch]).to(self.device).float()
        scale = outputs.var(dim=(0, 1)).clamp(min=1e-4)
        distance = ((encoded - outputs).square() / scale).mean(dim=2)
        weight = 0.3 + 0.7 * mask[..., TARGET] + mask[..., OVERLAP]
        return torch.stack((cross_entropy, (distance * weight).sum() / weight.sum()))

    def _texts(self, texts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return the tokens to read and the tokens to choose, (texts, positions) each."""
        read = [torch.tensor([*self.prompt, *tokens[:-1]]) for tokens in texts]
        before = [IGNORED] * (len(self.prompt) - 1)
        wanted = [torch.tensor([*before, *tokens]) for tokens in texts]
        pad = nn.utils.rnn.pad_sequence
        padded = pad(read, batch_first=True), pad(wanted, batch_first=True, padding_value=IGNORED)
        return padded[0].to(self.device), padded[1].to(self.device)

    def save(self, path: Path) -> None:
        """Write the file that `CONDITIONING_MODEL` reads, in float16."""
        tensors = {name: each.detach().half().cpu() for name, each in self.parameters.items()}
        metadata = {"rank": str(self.rank), "base_digest": main_digest(self.models)}
        save_file(tensors, path, metadata)


def new_parameters(models: WhisperModels, rank: int) -> dict[str, Tensor]:
    """Return trainable parameters that change nothing."""
    config = models.model.config
    updated = {f"layers.{n}.{each}" for n in range(config.encoder_layers) for each in PRODUCTS}
    parameters: dict[str, Tensor] = {}
    for name, shape in shapes(config, rank, updated).items():
        first = torch.zeros(shape)
        if name.endswith("lora_a"):
            first = torch.randn(shape) / math.sqrt(shape[1])
        elif name.endswith("weight"):
            first = torch.ones(shape)
        parameters[name] = nn.Parameter(first.to(models.device))
    return parameters


def train(
    distillation: Distillation,
    targets: Sequence[Target],
    others: Sequence[Piece],
    minutes: float,
    state: Path,
    initial: Path | None = None,
) -> Iterator[tuple[int, list[float]]]:
    """Train for `minutes`, including those in the file `state`, with the voices of `others`, from
    the weights in the file `initial`.

    Yields the number of mixtures and the mean losses whenever the state was saved.
    """
    parameters = distillation.parameters
    spoken = {each: [one for one in targets if one.piece.frames == each] for each in BATCH}
    voices = {each: [one for one in others if one.frames == each] for each in BATCH}
    groups = [
        {"params": [one for name, one in parameters.items() if name.startswith(part)], "rate": rate}
        for part, rate in (("fddt", TRANSFORM_RATE), ("layers", UPDATE_RATE))
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
    step, seconds = 0, 0.0
    if state.is_file():
        kept = torch.load(state, weights_only=True)
        for name, each in parameters.items():
            if kept["parameters"][name].shape != each.shape:
                raise ValueError(f"{state}: is of another --rank; choose a new folder")
            each.data.copy_(kept["parameters"][name])
        optimizer.load_state_dict(kept["optimizer"])
        step, seconds = kept["step"], kept["seconds"]
    elif initial is not None:
        models = distillation.models
        read = read_conditioning(str(initial), models.model, main_digest(models))
        for name, each in parameters.items():
            weight = read.weights.get(name)
            if weight is None or any(np.subtract(weight.shape, each.shape) > 0):
                raise ValueError(f"{initial}: has no {name} of --rank {distillation.rank} or less")
            each.data[tuple(map(slice, weight.shape))] = weight  # further ranks change nothing
    else:
        distillation.suppress_others(targets)
    losses, saved = list[Tensor](), seconds
    while seconds < minutes * 60:
        began = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * rate_factor(seconds / (minutes * 60))
        generator = np.random.default_rng([7, step])
        frames = [*BATCH][step % len(BATCH)]
        chosen = generator.integers(len(spoken[frames]), size=BATCH[frames])
        batch = [spoken[frames][number] for number in chosen]
        found = distillation.losses(batch, voices[frames], generator)
        optimizer.zero_grad()
        torch.autograd.backward(found.sum())
        nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        losses.append(found.detach())
        step += 1
        seconds += time.monotonic() - began
        if seconds >= min(saved + SAVE_EVERY, minutes * 60):
            kept = {"parameters": parameters, "optimizer": optimizer.state_dict()}
            save_whole({**kept, "step": step, "seconds": seconds}, state)
            saved = seconds
            yield step * sum(BATCH.values()) // len(BATCH), torch.stack(losses).mean(dim=0).tolist()
            losses = []


def rate_factor(progress: float) -> float:
    """Return the learning rates' factor: a short rise, a plateau, then a line down."""
    return max(LEAST_RATE, min(1.0, progress / RISE, (1 - progress) / FALL))
