"""Self-distillation: of a mixture, the encoder learns what the frozen model computes for one voice.

Two losses are added: cross entropy of the model's own text of the voice alone, read by the frozen
decoder, and the squared error of the encoder's output. Nothing needs a transcript.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration

from extras.conditioning.encoder import OVERLAP, TARGET, ConditionedEncoder
from extras.conditioning.mixtures import PLACEMENTS, WINDOW, Mixture, Piece, alone, mix
from extras.conditioning.options import Plan
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import find_repetition
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.model.encoder import LogMel
from whosaid.timebase import SAMPLES_PER_TOKEN

FRAMES = WINDOW // SAMPLES_PER_TOKEN
IGNORED = -100  # F.cross_entropy's
VALIDATION = {"alone": 4, "apart": 8, "two": 16}  # mixtures of development speakers
VALIDATE_EVERY = 4  # saves
WARM_UP, DECAY = 0.02, 0.25  # of all minutes: the rate rises, stays, falls
LEAST_RATE = 0.03
TEXTS_AT_ONCE = 48
LEAST_LOGPROB = -1.0  # a text that is less likely teaches nothing


@dataclass(frozen=True, eq=False)
class Spoken:
    """Targets, `pieces` with the model's own texts: the prompt of all, and tokens with the end of
    text. `others` are all pieces, to talk beside them.
    """

    pieces: list[Piece]
    others: Sequence[Piece]
    prompt: list[int]
    tokens: list[list[int]]


@dataclass(frozen=True)
class Report:
    """Losses so far: mean of the steps since the last report, and by kind on held-out mixtures."""

    minutes: float
    examples: int
    cross_entropy: float
    distance: float
    held_out: dict[str, float]


def own_texts(
    models: WhisperModels,
    pieces: Sequence[Piece],
    language: str,
    count: int,
    path: Path,
    report: Callable[[int], None],
) -> Spoken:
    """Return `count` pieces with the model's own texts, which `path` keeps.

    Pieces whose text is empty, repeats itself or is unlikely are left out. `report` gets the number
    of texts that were added.
    """
    kept: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
    special, engine = models.special_tokens, DecodeEngine(models)
    prompt = special.prompt(language, "transcribe", timestamps=False)
    drawn = np.random.default_rng(1).permutation(len(pieces))[:count]
    chosen = [pieces[number] for number in drawn]
    new = [each for each in chosen if each.name not in kept]
    for first in range(0, len(new), TEXTS_AT_ONCE):
        requests = [
            Request(each.name, each.samples, prompt, frames=FRAMES)
            for each in new[first : first + TEXTS_AT_ONCE]
        ]
        with engine.session(DecodeOptions(timestamps=False, batch_size=TEXTS_AT_ONCE)) as session:
            session.add(requests)
            while not session.done:
                for request, result in session.step():
                    usable = (
                        result.ended
                        and result.avg_logprob > LEAST_LOGPROB
                        and find_repetition(result.tokens) is None
                    )
                    kept[request.key] = [*result.tokens, special.end_of_text] if usable else []
        path.write_text(json.dumps(kept))
        report(len(requests))
    spoken = [each for each in chosen if len(kept[each.name]) > 1]
    return Spoken(spoken, pieces, [*prompt], [kept[each.name] for each in spoken])


class Losses:
    """Computes the losses of batches of mixtures; keeps the frozen model's targets in memory."""

    def __init__(
        self,
        models: WhisperModels,
        encoder: ConditionedEncoder,
        network: WhisperForConditionalGeneration,
        spoken: Spoken,
    ) -> None:
        self.encoder, self.spoken, self.device = encoder, spoken, models.device
        self.network = network.requires_grad_(False).to(models.device).eval()
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.log_mel.n_samples = WINDOW
        self.targets: dict[tuple[int, int], Tensor] = {}
        outputs = torch.cat(
            [self.target(number, 0) for number in range(min(32, len(spoken.pieces)))]
        )
        self.variance = outputs.float().var(dim=0).clamp(min=1e-4).to(self.device)

    def features(self, windows: Sequence[Any]) -> Tensor:
        """Return the log-mel spectrograms (windows, bands, 2 x frames)."""
        return self.log_mel(windows)

    @torch.no_grad()
    def target(self, number: int, placement: int) -> Tensor:
        """Return the frozen encoder's output (frames, d_model) for a placed piece alone."""
        key = (number, placement)
        if key not in self.targets:
            window, _ = alone(self.spoken.pieces[number], number, placement)
            self.targets[key] = self.encoder(self.features([window]))[0].half().cpu()
        return self.targets[key]

    @torch.no_grad()
    def silence(self) -> Tensor:
        """Return the mean output of the convolutions (d_model,) where a placed piece is silent."""
        found = []
        for number in range(min(16, len(self.spoken.pieces))):
            window, active = alone(self.spoken.pieces[number], number, 0)
            frames = self.encoder.convolved(self.features([window]))[0]
            found.append(frames[torch.from_numpy(~active).to(self.device)])
        return torch.cat(found).mean(dim=0)

    def of(self, batch: Sequence[Mixture]) -> tuple[Tensor, Tensor]:
        """Return the cross entropy and the distance of the encoder's outputs, both means."""
        mask = torch.from_numpy(np.stack([each.mask for each in batch])).to(self.device)
        targets = torch.stack([self.target(each.target, each.placement) for each in batch])
        read, wanted = self._texts(batch)
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            encoded = self.encoder(self.features([each.samples for each in batch]), mask)
            hidden = self.network.model.decoder(
                input_ids=read, encoder_hidden_states=encoded, use_cache=False
            ).last_hidden_state
            logits = self.network.proj_out(hidden[wanted != IGNORED])
        cross_entropy = F.cross_entropy(logits.float(), wanted[wanted != IGNORED])
        weight = 0.3 + 0.7 * mask[..., TARGET] + mask[..., OVERLAP]
        error = (encoded.float() - targets.to(self.device).float()).square() / self.variance
        return cross_entropy, (error.mean(dim=2) * weight).sum() / weight.sum()

    def _texts(self, batch: Sequence[Mixture]) -> tuple[Tensor, Tensor]:
        """Return the tokens that the decoder reads, and those it should choose, padded."""
        read, wanted = [], []
        for each in batch:
            prompt, tokens = self.spoken.prompt, self.spoken.tokens[each.target]
            read.append(torch.tensor([*prompt, *tokens[:-1]]))
            wanted.append(torch.tensor([IGNORED] * (len(prompt) - 1) + tokens))
        pad = nn.utils.rnn.pad_sequence
        return (
            pad(read, batch_first=True).to(self.device),
            pad(wanted, batch_first=True, padding_value=IGNORED).to(self.device),
        )


class Training:
    """A run of `plan.minutes`; `folder` holds its state, so that it may be continued."""

    def __init__(self, losses: Losses, held_out: Losses, plan: Plan, folder: Path) -> None:
        self.losses, self.held_out, self.plan, self.folder = losses, held_out, plan, folder
        self.encoder = losses.encoder
        groups = [
            {"params": list(self.encoder.fddt.parameters()), "rate": plan.transform_rate},
            {"params": list(self.encoder.layers.parameters()), "rate": plan.rate},
        ]
        self.optimizer = torch.optim.Adam(groups, lr=plan.rate, betas=(0.9, 0.98))
        self.step, self.seconds = 0, 0.0
        self.state = folder / "training.state"
        if self.state.is_file():
            self._resume()
        else:
            self.encoder.suppress_others(losses.silence())

    def run(self, report: Callable[[Report], None]) -> None:
        """Train to the end; `report` is called whenever the state was saved."""
        plan, sums, saved = self.plan, np.zeros(2), self.step
        next_save, saves = self.seconds, 0
        while self.seconds < plan.minutes * 60:
            began = time.monotonic()
            factor = rate_factor(self.seconds / (plan.minutes * 60))
            for group in self.optimizer.param_groups:
                group["lr"] = group["rate"] * factor
            generator = np.random.default_rng([7, self.step])
            spoken = self.losses.spoken
            mixtures = [mix(spoken.pieces, spoken.others, generator) for _ in range(plan.batch)]
            parts = self.losses.of(mixtures)
            self.optimizer.zero_grad()
            torch.autograd.backward(parts[0] + parts[1])
            nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
            self.optimizer.step()
            self.step += 1
            sums += [each.item() for each in parts]
            self.seconds += time.monotonic() - began
            if self.seconds >= min(next_save, plan.minutes * 60):
                self._save()
                means, saves = sums / (self.step - saved), saves + 1
                due = saves % VALIDATE_EVERY == 1 or self.seconds >= plan.minutes * 60
                held_out = self.validate() if due else {}
                report(Report(self.seconds / 60, self.step * plan.batch, *means, held_out))
                sums, saved, next_save = np.zeros(2), self.step, self.seconds + plan.save_every * 60

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the cross entropy by kind on the same mixtures of development speakers."""
        generator, spoken, found = np.random.default_rng(5), self.held_out.spoken, {}
        for kind, count in VALIDATION.items():
            mixtures = [mix(spoken.pieces, spoken.others, generator, kind) for _ in range(count)]
            found[kind] = self.held_out.of(mixtures)[0].item()
        return found

    def _save(self) -> None:
        self.encoder.save(self.folder / "conditioning.safetensors")
        state = {
            "encoder": self.encoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        partial = self.state.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.state)

    def _resume(self) -> None:
        state: dict[str, Any] = torch.load(self.state, weights_only=True)
        self.encoder.load_state_dict(state["encoder"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def rate_factor(progress: float) -> float:
    """Return the learning rates' factor: a short rise, a plateau, then a line down."""
    rising, falling = progress / WARM_UP, (1 - progress) / DECAY
    return max(LEAST_RATE, min(1.0, rising, falling))
