"""Finds speech with Silero's voice activity detector (VAD), in hours of audio at once.

Whisper makes up words for silence, noise and music, so audio without detected speech is not
decoded, except for long loud stretches (`WindowPlanner.loud_pauses`). The thresholds err towards
speech: missed words are lost, while silence taken for speech only costs time.

Only the weights of the `silero-vad` package are used. Its model keeps the state of one stream
inside and takes 32 ms of audio a call. Here calls share no state, the convolutions process a block
at once, and only the LSTM goes step by step: equal probabilities, eleven times faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from whosaid.asr.frontend.windows import SampleSpan

# Samples of a step, 32 ms with one probability, and samples before it that the network reads too.
STEP, CONTEXT = 512, 64
STEP_MS = 32
BLOCK = 512 * STEP  # samples processed at once, 16 s
# Each block is amplified to this peak, at most 50 dB: speech at -60 dB is found, 16-bit dither not.
TARGET_PEAK, MAX_GAIN = 0.5, 300
CLICK = 4  # times (12 dB) the peak of a sound that is long enough for speech: a click is louder
# Speech starts at the first probability and lasts down to the second (hysteresis).
START_THRESHOLD, STOP_THRESHOLD = 0.3, 0.15
PEAK_THRESHOLD = 0.5  # a span must reach it once; the onset of noise may come close to it
# Steps at START_THRESHOLD or above: a single word has at least six, the onset of music may have 4.
SHORTEST_SPEECH = 5
SHORTEST_PAUSE = 4  # steps; shorter pauses do not separate spans


@dataclass(frozen=True, slots=True)
class VadOptions:
    """The options of faster-whisper that apply here; None selects the constants above.

    Speech must reach `threshold` once. It starts and ends at lower probabilities, in proportion to
    `threshold`. `neg_threshold` replaces the probability of the end; speech does not start below
    it. `speech_pad_ms` is decoded on either side of speech (`asr.frontend.windows`).
    """

    threshold: float | None = None
    neg_threshold: float | None = None
    min_speech_duration_ms: int | None = None
    min_silence_duration_ms: int | None = None
    speech_pad_ms: int | None = None

    @property
    def peak(self) -> float:
        return PEAK_THRESHOLD if self.threshold is None else self.threshold


DEFAULT_OPTIONS = VadOptions()
DetectSpeech = Callable[[NDArray[np.float32]], Sequence[SampleSpan]]


class SpeechDetector:
    """Finds speech in audio of any length, on the CPU; safe to call from several threads."""

    def __init__(self) -> None:
        self.network = load_network()

    def __call__(self, samples: NDArray[np.float32]) -> tuple[SampleSpan, ...]:
        """Return the spans of speech in `samples` (n,), mono at 16 kHz, in order."""
        search = SpeechSearch(self.network)
        for _ in search.blocks(samples, complete=True):
            pass
        return find_speech(search.probabilities, len(samples))


class SpeechSearch:
    """Searches one recording, block by block, while it may still be decoded. The last step is
    padded with silence. Blocks are amplified, because the network misses quiet recordings' speech.
    """

    def __init__(self, network: SileroNetwork) -> None:
        self._stream = SileroStream(
            network, lambda steps: gain_for(loudness(steps.abs().amax(dim=1)))
        )
        self._found = [np.zeros(0, np.float32)]
        self._searched = 0

    def blocks(self, samples: NDArray[np.float32], complete: bool) -> Iterator[None]:
        """Search the blocks that are new in `samples`, which begin with all samples of earlier
        calls, and yield after each. The last block may be short if the recording is `complete`.
        """
        while self._searched + (1 if complete else BLOCK) <= len(samples):
            block = np.asarray(samples[self._searched : self._searched + BLOCK], np.float32)
            self._found.append(self._stream.push(np.pad(block, (0, -len(block) % STEP))))
            self._searched += len(block)
            yield

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Return the probability of speech in each step of 512 samples so far, (steps,)."""
        return np.concatenate(self._found)


class SileroStream:
    """The network along one stream of samples; its state is kept from push to push.

    `gain` returns the factor by which to amplify the steps (n, 64 + 512) of a push.
    """

    def __init__(self, network: SileroNetwork, gain: Callable[[Tensor], float]) -> None:
        self._network, self._gain = network, gain
        self._before = np.zeros(CONTEXT, np.float32)
        self._state: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of speech in each step of `samples`, whole steps of 512."""
        joined = np.concatenate([self._before, samples])
        self._before = joined[-CONTEXT:]
        steps = torch.from_numpy(joined).unfold(0, CONTEXT + STEP, STEP)
        gain = self._gain(steps)
        amplified = (steps * gain).clamp(-1, 1) if gain > 1 else steps
        probabilities, self._state = self._network(amplified, self._state)
        found: NDArray[np.float32] = probabilities.numpy()
        return found


class SileroNetwork(nn.Module):
    """The network of Silero VAD 5 and 6 at 16 kHz: spectrogram, four convolutions, LSTM. The single
    steps of live streams take half the time as products; blocks use torch's convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        sizes = (129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(into, out, 3, stride, padding=1) for into, out, stride in sizes
        )
        self.recurrent = nn.LSTM(128, 128)
        self.speech = nn.Linear(128, 1)

    def forward(
        self, steps: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return probabilities (steps,) for samples (steps, 64 + 512), and the LSTM's new state."""
        convolve = _product if len(steps) == 1 else nn.Module.__call__
        spectrum = convolve(self.spectrum, F.pad(steps[:, None], (0, CONTEXT), "reflect"))
        real, imaginary = spectrum.chunk(2, dim=1)
        features = (real.square() + imaginary.square()).sqrt()  # (steps, 129, 4)
        for convolution in self.convolutions:
            features = convolve(convolution, features).relu()
        features = features[..., 0]
        if len(features) > 1 or state is None:
            hidden, new_state = self.recurrent(features, state)
        else:  # without torch's preparations for many steps
            hidden, cell = torch.lstm_cell(features, state, *self.recurrent.all_weights[0])
            new_state = hidden, cell
        return self.speech(hidden.relu()).sigmoid()[:, 0], new_state


def _product(convolution: nn.Module, values: Tensor) -> Tensor:
    """Convolve `values` (n, channels, time) as one matrix product over unfolded values."""
    assert isinstance(convolution, nn.Conv1d)
    (width,), (stride,) = convolution.kernel_size, convolution.stride
    padding = int(convolution.padding[0])
    covered = F.pad(values, (padding, padding)).unfold(2, width, stride).transpose(1, 2)
    products = F.linear(covered.flatten(2), convolution.weight.flatten(1), convolution.bias)
    return products.transpose(1, 2)


def load_network() -> SileroNetwork:
    """Return the network with the weights of the `silero-vad` package, which is not imported."""
    file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad.jit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.load
        packed = torch.jit.load(str(file), map_location="cpu").state_dict()
    weights = {"spectrum.weight": packed["_model.stft.forward_basis_buffer"]}
    for kind in ("weight", "bias"):
        for layer in range(4):
            weights[f"convolutions.{layer}.{kind}"] = packed[
                f"_model.encoder.{layer}.reparam_conv.{kind}"
            ]
        for side in ("ih", "hh"):
            weights[f"recurrent.{kind}_{side}_l0"] = packed[f"_model.decoder.rnn.{kind}_{side}"]
    weights["speech.weight"] = packed["_model.decoder.decoder.2.weight"][..., 0]
    weights["speech.bias"] = packed["_model.decoder.decoder.2.bias"]
    network = SileroNetwork()
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


@dataclass(eq=False, slots=True)
class ProbableSpeech:
    """Runs of probable steps from `start` up to `stop`, with only short pauses between them;
    `likely` steps reach the threshold of a start, and a `certain` step the threshold of a peak.
    """

    start: int
    stop: int = 0
    likely: int = 0
    certain: bool = False


class SpeechRule:
    """Finds speech in one probability after another, in files and in live streams.

    A run of steps at the stop threshold or above counts if one reaches the start threshold. Runs
    with a pause shorter than the shortest pause between them are joined. They are speech if enough
    steps reach the start threshold and one reaches the peak threshold.
    """

    def __init__(self, options: VadOptions) -> None:
        self.steps = 0
        self.run: int | None = None  # first step of the current run
        self.joined: ProbableSpeech | None = None  # the runs that the next run may be joined to
        self._counts = False  # the run has a likely step
        self.change(options)

    def change(self, options: VadOptions) -> None:
        """Use other options from the next step on."""
        scale, stop = options.peak / PEAK_THRESHOLD, options.neg_threshold
        self._stop = STOP_THRESHOLD * scale if stop is None else stop
        self._start, self._peak = max(START_THRESHOLD * scale, self._stop), options.peak
        self._shortest_speech = _steps(options.min_speech_duration_ms, SHORTEST_SPEECH)
        self._shortest_pause = _steps(options.min_silence_duration_ms, SHORTEST_PAUSE)

    def push(self, probability: float) -> ProbableSpeech | None:
        """Add the probability of a step. Return the runs that it belongs to, if its run counts."""
        self.steps += 1
        if probability < self._stop:
            self.run, self._counts = None, False
            if self.joined and self.steps - self.joined.stop >= self._shortest_pause:
                self.joined = None
            return None
        if self.run is None:
            self.run = self.steps - 1
        likely = probability >= self._start
        self._counts |= likely
        if not self._counts:
            return None
        if self.joined is None:
            self.joined = ProbableSpeech(self.run)
        self.joined.stop = self.steps
        self.joined.likely += likely
        self.joined.certain |= probability >= self._peak
        return self.joined

    def is_speech(self, found: ProbableSpeech) -> bool:
        return found.certain and found.likely >= self._shortest_speech


def _steps(milliseconds: int | None, default: int) -> int:
    return default if milliseconds is None else -(-milliseconds // STEP_MS)


def find_speech(
    probabilities: NDArray[np.float32],
    length: int,
    options: VadOptions = DEFAULT_OPTIONS,
    complete: bool = True,
) -> tuple[SampleSpan, ...]:
    """Return spans of speech by each step's probability; unless `complete`, none that may grow."""
    rule = SpeechRule(options)
    found = dict.fromkeys(map(rule.push, probabilities.tolist()))
    if not complete:
        found.pop(rule.joined, None)
    return tuple(
        SampleSpan(each.start * STEP, min(each.stop * STEP, length))
        for each in found
        if each is not None and rule.is_speech(each)
    )


def loudness(peaks: Tensor) -> float:
    """Return the largest of the steps' peaks (n,), at most CLICK times the peak that
    SHORTEST_SPEECH steps, or all, reach.
    """
    loudest = peaks.topk(min(SHORTEST_SPEECH, len(peaks))).values
    return float(torch.minimum(loudest[0], CLICK * loudest[-1]))


def gain_for(level: float) -> float:
    """Return the factor, 1 to MAX_GAIN, that amplifies the peak `level` to TARGET_PEAK."""
    return min(max(TARGET_PEAK / max(level, 1e-9), 1.0), MAX_GAIN)
