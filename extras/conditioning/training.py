"""Self-distillation: from a mixture, the encoder learns what the frozen model makes of one voice.

Two losses are added: the cross entropy of the model's own text of the voice alone, read by the
frozen decoder, and the squared error of the encoder's output. Neither needs a transcript.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration

from extras.conditioning.encoder import FILE, OVERLAP, TARGET, ConditionedEncoder
from extras.conditioning.mixtures import FRAME, WINDOW, Mixture, Piece, mix
from whosaid.asr import DecodeOptions, WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import find_repetition
from whosaid.asr.engine.request import Request
from whosaid.asr.model.encoder import LogMel

BATCH = 4  # mixtures in a step
# The highest learning rates of the transformations and of the low-rank updates. Both rise, stay and
# fall; WARM_UP and DECAY are shares of all minutes.
TRANSFORM_RATE, UPDATE_RATE, LEAST_RATE = 3e-3, 1e-3, 0.03
WARM_UP, DECAY = 0.02, 0.25
SAVE_EVERY, VALIDATE_EVERY = 5 * 60, 4  # seconds; savings
VALIDATION = {"alone": 4, "apart": 8, "two": 16}  # mixtures of each kind
TEXTS_AT_ONCE, LONGEST_TEXT = 48, 60  # windows; tokens
LEAST_LOGPROB = -1.0  # a text that is less likely teaches nothing
IGNORED = -100  # F.cross_entropy's


@dataclass(frozen=True, eq=False)
class Targets:
    """Pieces to follow, and what the frozen model makes of each alone: the tokens of its text, read
    after `prompt`, and its encoder's output (frames, d_model). `others` talk beside them.
    """

    pieces: Sequence[Piece]
    prompt: tuple[int, ...]
    tokens: Sequence[list[int]]
    outputs: Sequence[Tensor]
    others: Sequence[Piece]

    def mixtures(self, count: int, generator: np.random.Generator, kind: str = "") -> list[Mixture]:
        return [mix(self.pieces, self.others, generator, kind) for _ in range(count)]


class Distillation:
    """The frozen model, and the losses of the conditioned encoder."""

    def __init__(self, models: WhisperModels, encoder: ConditionedEncoder) -> None:
        assert models.checkpoint is not None
        self.models, self.encoder, self.device = models, encoder, models.device
        network = WhisperForConditionalGeneration.from_pretrained(**models.checkpoint.source)
        self.network = network.float().requires_grad_(False).to(models.device).eval()
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.log_mel.n_samples = WINDOW

    @torch.no_grad()
    def targets(
        self,
        pieces: Sequence[Piece],
        language: str,
        count: int,
        path: Path,
        report: Callable[[int], None],
    ) -> Targets:
        """Return at most `count` pieces with their targets; `path` keeps the texts.

        Pieces whose text is empty, repeats itself or is unlikely are left out. `report` gets the
        number of pieces that were added.
        """
        texts: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
        special, engine = self.models.special_tokens, DecodeEngine(self.models)
        prompt = special.prompt(language, "transcribe", timestamps=False)
        drawn = np.random.default_rng(1).permutation(len(pieces))[:count]
        chosen, outputs = [pieces[number] for number in drawn], []
        for first in range(0, len(chosen), TEXTS_AT_ONCE):
            some = chosen[first : first + TEXTS_AT_ONCE]
            for each in some:
                window = each.placed(each.samples, FRAME)
                outputs.append(self.encoder(self.log_mel([window]))[0].half().cpu())
            requests = [
                Request(each.name, each.samples, prompt, LONGEST_TEXT, output[None].float())
                for each, output in zip(some, outputs[first:], strict=True)
                if each.name not in texts
            ]
            options = DecodeOptions(timestamps=False, batch_size=TEXTS_AT_ONCE)
            with engine.session(options) as session:
                session.add(requests)
                while not session.done:
                    for request, result in session.step():
                        usable = (
                            result.ended
                            and result.avg_logprob > LEAST_LOGPROB
                            and find_repetition(result.tokens) is None
                        )
                        tokens = [*result.tokens, special.end_of_text]
                        texts[request.key] = tokens if usable else []
            path.write_text(json.dumps(texts))
            report(len(some))
        kept = [place for place, each in enumerate(chosen) if len(texts[each.name]) > 1]
        return Targets(
            [chosen[place] for place in kept],
            prompt,
            [texts[chosen[place].name] for place in kept],
            [outputs[place] for place in kept],
            pieces,
        )

    @torch.no_grad()
    def silence(self, targets: Targets) -> Tensor:
        """Return the mean output of the convolutions (d_model,) where placed pieces are silent."""
        found = []
        for each in targets.pieces[:16]:
            frames = self.encoder.convolved(self.log_mel([each.placed(each.samples, FRAME)]))[0]
            found.append(frames[torch.from_numpy(~each.placed(each.active, 1)).to(self.device)])
        return torch.cat(found).mean(dim=0)

    def losses(self, targets: Targets, batch: Sequence[Mixture]) -> tuple[Tensor, Tensor]:
        """Return the mean cross entropy and the mean distance of the encoder's outputs."""
        mask = torch.from_numpy(np.stack([each.mask for each in batch])).to(self.device)
        read, wanted = self._texts(targets, batch)
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            encoded = self.encoder(self.log_mel([each.samples for each in batch]), mask)
            hidden = self.network.model.decoder(
                input_ids=read, encoder_hidden_states=encoded, use_cache=False
            ).last_hidden_state
            logits = self.network.proj_out(hidden[wanted != IGNORED])
        cross_entropy = F.cross_entropy(logits.float(), wanted[wanted != IGNORED])
        outputs = torch.stack([targets.outputs[each.target] for each in batch])
        outputs = outputs.to(self.device).float()
        scale = outputs.var(dim=(0, 1)).clamp(min=1e-4)
        distance = ((encoded.float() - outputs).square() / scale).mean(dim=2)
        weight = 0.3 + 0.7 * mask[..., TARGET] + mask[..., OVERLAP]
        return cross_entropy, (distance * weight).sum() / weight.sum()

    def _texts(self, targets: Targets, batch: Sequence[Mixture]) -> tuple[Tensor, Tensor]:
        """Return the tokens that the decoder reads, and those it should choose, padded."""
        texts = [targets.tokens[each.target] for each in batch]
        read = [torch.tensor([*targets.prompt, *tokens[:-1]]) for tokens in texts]
        before = [IGNORED] * (len(targets.prompt) - 1)
        wanted = [torch.tensor([*before, *tokens]) for tokens in texts]
        pad = nn.utils.rnn.pad_sequence
        return (
            pad(read, batch_first=True).to(self.device),
            pad(wanted, batch_first=True, padding_value=IGNORED).to(self.device),
        )


class Training:
    """A run of some minutes; `folder` holds its state, so that another run continues it."""

    def __init__(
        self,
        distillation: Distillation,
        targets: Targets,
        held_out: Targets,
        minutes: float,
        folder: Path,
    ) -> None:
        self.distillation, self.targets, self.held_out = distillation, targets, held_out
        self.encoder, self.folder, self.total = distillation.encoder, folder, minutes * 60
        rates = ((self.encoder.fddt, TRANSFORM_RATE), (self.encoder.layers, UPDATE_RATE))
        groups = [{"params": [*part.parameters()], "rate": rate} for part, rate in rates]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self.step, self.seconds, self.state = 0, 0.0, folder / "training.state"
        if self.state.is_file():
            self._resume()
        else:
            self.encoder.suppress_others(distillation.silence(targets))

    @property
    def minutes(self) -> float:
        return self.seconds / 60

    @property
    def examples(self) -> int:
        return self.step * BATCH

    def run(self) -> Iterator[str]:
        """Train to the end. Yields a line whenever the state was saved."""
        losses: list[list[float]] = []
        next_save, savings = self.seconds, 0
        while self.seconds < self.total:
            began = time.monotonic()
            losses.append(self._step())
            self.seconds += time.monotonic() - began
            if self.seconds >= min(next_save, self.total):
                self._save()
                next_save, savings = self.seconds + SAVE_EVERY, savings + 1
                cross_entropy, distance = np.mean(losses, axis=0)
                losses = []
                line = f"{self.examples} mixtures: losses {cross_entropy:.3f}, {distance:.3f}"
                checked = savings % VALIDATE_EVERY == 1 or self.seconds >= self.total
                yield f"{line}; held out {self.validate()}" if checked else line

    @torch.no_grad()
    def validate(self) -> str:
        """Return the cross entropy of the same mixtures of held-out voices, by kind."""
        generator, found = np.random.default_rng(5), []
        for kind, count in VALIDATION.items():
            batch = self.held_out.mixtures(count, generator, kind)
            found.append(f"{kind} {self.distillation.losses(self.held_out, batch)[0]:.3f}")
        return ", ".join(found)

    def _step(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * rate_factor(self.seconds / self.total)
        mixtures = self.targets.mixtures(BATCH, np.random.default_rng([7, self.step]))
        losses = torch.stack(self.distillation.losses(self.targets, mixtures))
        self.optimizer.zero_grad()
        torch.autograd.backward(losses.sum())
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return list(losses.tolist())

    def _save(self) -> None:
        self.encoder.save(self.folder / FILE)
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
    return max(LEAST_RATE, min(1.0, progress / WARM_UP, (1 - progress) / DECAY))
