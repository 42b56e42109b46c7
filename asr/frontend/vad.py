"""Where somebody speaks: Silero's voice activity detector over hours of audio at once.

Whisper speaks on silence, noise and music; what this detector does not take for speech is never
decoded. It would rather hear too much: missed words are lost, silence that is heard costs time.

The one decision: the network of the `silero-vad` package is written out here around the package's
weights, and nothing else of the package is used. Its own form is a script that keeps the state of
one stream inside the model, takes 32 ms a call and is loaded with a deprecated function, and
importing the package sets torch's threads for the whole process. Here a call shares nothing with
another, the convolutions see a block at once and only the recurrent layer goes frame by frame: the
same probabilities, eleven times faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distribution

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.frontend.windows import Span

STEP, CONTEXT = 512, 64  # samples: a probability each 32 ms, from these and the few before them
BLOCK = 512 * STEP  # samples looked at at once, 16 s
FULL_SCALE, MOST_GAIN = (
    0.5,
    300,
)  # 50 dB: speech at -60 dB is heard, the dither of 16 bits stays quiet
STARTS, LASTS = 0.3, 0.15  # probabilities at which speech starts, and above which it lasts
SURE = 0.5  # that it must reach somewhere; noise that sets in may come close
SHORTEST_SPEECH = 5  # steps likely to be speech; a word alone has six and more, where music sets in there may be four
SHORTEST_PAUSE = 4

DetectSpeech = Callable[[NDArray[np.float32]], Sequence[Span]]


class SpeechDetector:
    """Finds speech in audio of any length, on the CPU; safe to call from several threads."""

    def __init__(self) -> None:
        self.network = load_network()

    def __call__(self, samples: NDArray[np.float32]) -> tuple[Span, ...]:
        """The spans of `samples` (n,), mono at 16 kHz, in which somebody speaks: in order, apart
        from each other.
        """
        return find_speech(self.probabilities(samples), len(samples))

    @torch.inference_mode()
    def probabilities(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """How likely each step of 512 samples, the last one filled up with silence, is speech.

        Every block is brought to full scale first: speech is not missed for being recorded quietly.
        """
        state: tuple[Tensor, Tensor] | None = None
        found = [np.zeros(0, np.float32)]
        for steps in _blocks(samples):
            gain = min(max(FULL_SCALE / max(float(steps.abs().max()), 1e-9), 1.0), MOST_GAIN)
            block, state = self.network(steps * gain, state)
            found.append(block.numpy())
        return np.concatenate(found)


class SileroNetwork(nn.Module):
    """The network of Silero VAD 5 and 6 at 16 kHz: a spectrogram, four convolutions over it, an
    LSTM over the steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.convolutions = nn.Sequential(
            *(
                nn.Conv1d(129, 128, 3, padding=1),
                nn.ReLU(),
                nn.Conv1d(128, 64, 3, stride=2, padding=1),
                nn.ReLU(),
            ),
            *(
                nn.Conv1d(64, 64, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Conv1d(64, 128, 3, padding=1),
                nn.ReLU(),
            ),
        )
        self.recurrent = nn.LSTM(128, 128)
        self.speech = nn.Linear(128, 1)

    def forward(
        self, steps: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Probabilities (steps,) for samples (steps, 64 + 512) and what to remember for the next
        steps.
        """
        spectrum = self.spectrum(F.pad(steps[:, None], (0, CONTEXT), "reflect"))  # (steps, 258, 4)
        real, imaginary = spectrum.chunk(2, dim=1)
        features = self.convolutions((real.square() + imaginary.square()).sqrt())  # (steps, 128, 1)
        hidden, state = self.recurrent(features[..., 0], state)
        return self.speech(hidden.relu()).sigmoid()[:, 0], state


def load_network() -> SileroNetwork:
    """The network with the weights that the installed package ships; reads one file and imports
    nothing of it.
    """
    file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad.jit")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # torch.jit.load; only the weights are taken
        packed = torch.jit.load(str(file), map_location="cpu").state_dict()
    weights = {"spectrum.weight": packed["_model.stft.forward_basis_buffer"]}
    for kind in ("weight", "bias"):
        for place in range(4):
            weights[f"convolutions.{2 * place}.{kind}"] = packed[
                f"_model.encoder.{place}.reparam_conv.{kind}"
            ]
        for side in ("ih", "hh"):
            weights[f"recurrent.{kind}_{side}_l0"] = packed[f"_model.decoder.rnn.{kind}_{side}"]
    weights["speech.weight"] = packed["_model.decoder.decoder.2.weight"][..., 0]
    weights["speech.bias"] = packed["_model.decoder.decoder.2.bias"]
    network = SileroNetwork()
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def find_speech(probabilities: NDArray[np.float32], length: int) -> tuple[Span, ...]:
    """Runs of likely speech in `length` samples: with hysteresis, across short pauses, without
    those too short.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], probabilities >= LASTS, [False]])))
    starts, stops = edges[::2], edges[1::2]
    likely = np.concatenate([[0], np.cumsum(probabilities >= STARTS)])
    sure = np.concatenate([[0], np.cumsum(probabilities >= SURE)])
    heard = likely[stops] > likely[starts]
    starts, stops = starts[heard], stops[heard]
    apart = starts[1:] - stops[:-1] >= SHORTEST_PAUSE
    starts, stops = (
        starts[np.append(True, apart)[: len(starts)]],
        stops[np.append(apart, True)[: len(stops)]],
    )
    kept = (likely[stops] - likely[starts] >= SHORTEST_SPEECH) & (sure[stops] > sure[starts])
    bounds = zip(starts[kept].tolist(), stops[kept].tolist(), strict=True)
    return tuple(Span(start * STEP, min(stop * STEP, length)) for start, stop in bounds)


def _blocks(samples: NDArray[np.float32]) -> Iterator[Tensor]:
    """The samples in blocks of steps (steps, 64 + 512), each step after the last samples of the one
    before it.
    """
    for first in range(0, len(samples), BLOCK):
        block = np.asarray(samples[max(0, first - CONTEXT) : first + BLOCK], np.float32)
        before = CONTEXT if first == 0 else 0
        filled = np.pad(block, (before, -(len(block) + before - CONTEXT) % STEP))
        yield torch.from_numpy(filled).unfold(0, CONTEXT + STEP, STEP)
