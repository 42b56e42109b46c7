"""Self-distillation: the encoder learns to read a mixture as the frozen model reads one voice.

Two losses are added: the cross entropy of the frozen model's text of that voice, through the frozen
decoder, and the squared error of the encoder's output. Neither needs a transcript.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from whosaid.asr.engine.request import DecodeResult, Request
from whosaid.asr.model.encoder import LogMel

BATCH = 4  # mixtures in a step
# The highest learning rates of the transformations and of the low-rank updates. Both rise, stay and
# fall; WARM_UP and DECAY are shares of all minutes.
TRANSFORM_RATE, UPDATE_RATE, LEAST_RATE = 3e-3, 1e-3, 0.03
WARM_UP, DECAY = 0.02, 0.25
SAVE_EVERY = 5 * 60  # seconds
TEXTS_AT_ONCE, LONGEST_TEXT = 48, 60  # windows; tokens
LEAST_LOGPROB = -1.0  # a text that is less likely teaches nothing
IGNORED = -100  # F.cross_entropy's


@dataclass(frozen=True, eq=False)
class Target:
    """A piece to follow, with the frozen model's results for the piece alone: the tokens of the
    text, and the encoder's output (frames, d_model).
    """

    piece: Piece
    tokens: list[int]
    output: Tensor


class Distillation:
    """The frozen model, and the losses of the conditioned encoder."""

    def __init__(self, models: WhisperModels, encoder: ConditionedEncoder, language: str) -> None:
        assert models.checkpoint is not None
        self.models, self.encoder, self.device = models, encoder, models.device
        self.prompt = models.special_tokens.prompt(language, "transcribe", timestamps=False)
        network = WhisperForConditionalGeneration.from_pretrained(**models.checkpoint.source)
        self.network = network.float().requires_grad_(False).to(models.device).eval()
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.log_mel.n_samples = WINDOW

    @torch.no_grad()
    def targets(
        self, pieces: Sequence[Piece], path: Path, report: Callable[[int], None]
    ) -> list[Target]:
        """Return the pieces as targets; `path` keeps their texts.

        Pieces whose text is empty, repeats itself or is unlikely are left out. `report` gets the
        number of pieces that are done.
        """
        texts: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}
        engine, outputs = DecodeEngine(self.models), {}
        encode = engine.context.encoder.main.forward
        for first in range(0, len(pieces), TEXTS_AT_ONCE):
            requests = []
            for each in pieces[first : first + TEXTS_AT_ONCE]:
                output = encode(self.log_mel([each.placed(each.samples, FRAME)]))
                outputs[each.name] = output[0].half().cpu()
                request = Request(each.name, each.samples, self.prompt, LONGEST_TEXT, output)
                requests += [] if each.name in texts else [request]
            options = DecodeOptions(timestamps=False, batch_size=TEXTS_AT_ONCE)
            with engine.session(options) as session:
                session.add(requests)
                while not session.done:
                    for request, result in session.step():
                        texts[request.key] = self._tokens(result)
            path.write_text(json.dumps(texts))
            report(first)
        return [
            Target(each, texts[each.name], outputs[each.name])
            for each in pieces
            if texts[each.name]
        ]

    def _tokens(self, result: DecodeResult) -> list[int]:
        """Return the tokens to learn with the end of text, none of an unusable text."""
        unusable = not result.ended or result.avg_logprob < LEAST_LOGPROB or not result.tokens
        if unusable or find_repetition(result.tokens) is not None:
            return []
        return [*result.tokens, self.models.special_tokens.end_of_text]

    @torch.no_grad()
    def silence(self, targets: Sequence[Target]) -> Tensor:
        """Return the mean output of the convolutions (d_model,) where targets are silent."""
        found = []
        for piece in (each.piece for each in targets[:16]):
            frames = self.encoder.convolved(self.log_mel([piece.placed(piece.samples, FRAME)]))[0]
            found.append(frames[torch.from_numpy(~piece.placed(piece.active, 1)).to(self.device)])
        return torch.cat(found).mean(dim=0)

    def losses(self, targets: Sequence[Target], batch: Sequence[Mixture]) -> Tensor:
        """Return the mean cross entropy, and the mean distance of the encoder's outputs."""
        mask = torch.from_numpy(np.stack([each.mask for each in batch])).to(self.device)
        chosen = [targets[each.target] for each in batch]
        read, wanted = self._texts([each.tokens for each in chosen])
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            encoded = self.encoder(self.log_mel([each.samples for each in batch]), mask)
            hidden = self.network.model.decoder(
                input_ids=read, encoder_hidden_states=encoded, use_cache=False
            ).last_hidden_state
            logits = self.network.proj_out(hidden[wanted != IGNORED])
        cross_entropy = F.cross_entropy(logits.float(), wanted[wanted != IGNORED])
        outputs = torch.stack([each.output for each in chosen]).to(self.device).float()
        scale = outputs.var(dim=(0, 1)).clamp(min=1e-4)
        distance = ((encoded.float() - outputs).square() / scale).mean(dim=2)
        weight = 0.3 + 0.7 * mask[..., TARGET] + mask[..., OVERLAP]
        return torch.stack((cross_entropy, (distance * weight).sum() / weight.sum()))

    def _texts(self, texts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return the tokens to read and the tokens to choose, (texts, positions) each."""
        read = [torch.tensor([*self.prompt, *tokens[:-1]]) for tokens in texts]
        before = [IGNORED] * (len(self.prompt) - 1)
        wanted = [torch.tensor([*before, *tokens]) for tokens in texts]
        pad = nn.utils.rnn.pad_sequence
        return (
            pad(read, batch_first=True).to(self.device),
            pad(wanted, batch_first=True, padding_value=IGNORED).to(self.device),
        )


class Training:
    """A run of some minutes; `folder` holds its state, so that another run continues it.

    The pieces `others` talk beside the targets.
    """

    def __init__(
        self,
        distillation: Distillation,
        targets: Sequence[Target],
        others: Sequence[Piece],
        minutes: float,
        folder: Path,
    ) -> None:
        self.distillation, self.targets, self.others = distillation, targets, others
        self.encoder, self.folder, self.total = distillation.encoder, folder, minutes * 60
        rates = ((self.encoder.fddt, TRANSFORM_RATE), (self.encoder.layers, UPDATE_RATE))
        groups = [{"params": [*part.parameters()], "rate": rate} for part, rate in rates]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
        self.step, self.seconds, self.path = 0, 0.0, folder / "training.state"
        if self.path.is_file():
            state = torch.load(self.path, weights_only=True)
            self.encoder.load_state_dict(state["encoder"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]
        else:
            self.encoder.suppress_others(distillation.silence(targets))

    def run(self) -> Iterator[str]:
        """Train to the end. Yields a line whenever the state was saved."""
        losses: list[Tensor] = []
        next_save = self.seconds + SAVE_EVERY
        while self.seconds < self.total:
            began = time.monotonic()
            losses.append(self._step())
            self.seconds += time.monotonic() - began
            if self.seconds >= min(next_save, self.total):
                self._save()
                next_save = self.seconds + SAVE_EVERY
                entropy, distance = torch.stack(losses).mean(dim=0).tolist()
                losses = []
                mixtures = self.step * BATCH
                yield f"{mixtures} mixtures: cross entropy {entropy:.3f}, distance {distance:.3f}"

    def _step(self) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * rate_factor(self.seconds / self.total)
        generator, pieces = np.random.default_rng([7, self.step]), [t.piece for t in self.targets]
        batch = [mix(pieces, self.others, generator) for _ in range(BATCH)]
        losses = self.distillation.losses(self.targets, batch)
        self.optimizer.zero_grad()
        torch.autograd.backward(losses.sum())
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return losses.detach()

    def _save(self) -> None:
        self.encoder.save(self.folder / FILE)
        states = {"encoder": self.encoder.state_dict(), "optimizer": self.optimizer.state_dict()}
        partial = self.path.with_suffix(".partial")
        torch.save({**states, "step": self.step, "seconds": self.seconds}, partial)
        partial.replace(self.path)


def rate_factor(progress: float) -> float:
    """Return the learning rates' factor: a short rise, a plateau, then a line down."""
    return max(LEAST_RATE, min(1.0, progress / WARM_UP, (1 - progress) / DECAY))
