"""How a recording is decoded once its languages are known: prompt, assistant, readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from asr.checkpoint.loading import WhisperModels
from asr.engine.fallback import DEFAULT_FALLBACK
from asr.engine.request import DecodeOptions
from asr.language_timeline import LanguageTimeline
from asr.options import TranscriptionOptions
from asr.output.chunks import ChunkReader
from payload.languages import ENGLISH, language_name


@dataclass(frozen=True, slots=True)
class InLanguage:
    """How windows of one language are decoded and read."""

    prompt: tuple[int, ...]
    reader: ChunkReader


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """How a recording is decoded whose languages are known: each of its languages in its own way.

    With `expects_one_language` a second one is warned of, between `warnings` and those `of_prompt`.
    """

    options: DecodeOptions
    timeline: LanguageTimeline
    languages: Mapping[str | None, InLanguage]
    expects_one_language: bool
    warnings: tuple[str, ...] = ()
    of_prompt: tuple[str, ...] = ()

    def at(self, position: int) -> InLanguage:
        """That of the language which is spoken at a sample."""
        return self.languages[self.timeline.language_at(position)]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans how recordings are decoded with one set of models and the same options."""

    models: WhisperModels
    options: TranscriptionOptions

    def plan(self, timeline: LanguageTimeline) -> DecodingPlan:
        """That of a recording with these languages."""
        options = self.options
        assisted, warnings = self._use_assistant(timeline.languages)
        previous, cut = self._previous_text()
        if options.multilingual:
            warnings += self._unused_detection()
        expects_one = options.language is None and not options.multilingual
        return DecodingPlan(
            self._decode_options(assisted),
            timeline,
            {each: self._in_language(each, previous) for each in timeline.languages},
            expects_one and not previous,
            warnings,
            cut,
        )

    def _in_language(self, language: str | None, previous: tuple[int, ...]) -> InLanguage:
        """How windows of a language are decoded: `previous` text is the same for all."""
        task, decode = self.options.task, self.options.decode
        prompt = self.models.special_tokens.prompt(
            language, task, _decodes_timestamps(decode), previous
        )
        written = ENGLISH if task == "translate" else language
        fallback = decode.fallback or DEFAULT_FALLBACK
        reader = ChunkReader(self.models, written, decode.timestamps, fallback)
        return InLanguage(prompt, reader)

    def _unused_detection(self) -> tuple[str, ...]:
        """A warning where `multilingual` was asked for and the language was known before."""
        if self.options.language is None:
            return ()
        english_only = not self.models.special_tokens.multilingual
        reason = "the model is English-only" if english_only else "the language was given"
        return (f"multilingual: {reason}; no other was looked for",)

    def _decode_options(self, assisted: bool) -> DecodeOptions:
        """What the engine is told."""
        asked = self.options.decode
        timestamps = _decodes_timestamps(asked)
        return replace(asked, timestamps=timestamps, assisted=assisted)

    def _use_assistant(self, languages: Sequence[str | None]) -> tuple[bool, tuple[str, ...]]:
        """Return whether the assistant or heads may draft, and a warning if the request asked for
        drafts that the recording cannot have.

        By default they draft for recordings; live passes are guesses for each other.
        """
        decode = self.options.decode
        if decode.assisted is False or (decode.assisted is None and decode.live):
            return False, ()
        obstacle = self._no_drafts(languages)
        if obstacle is None:
            return True, ()
        return False, (f"assisted: {obstacle}",) if decode.assisted else ()

    def _no_drafts(self, languages: Sequence[str | None]) -> str | None:
        """Return why nothing can draft for these languages; None if something can."""
        decode, assistant = self.options.decode, self.models.assistant
        if assistant is None and self.models.medusa is None:
            return "no assistant model is loaded; decoded without one"
        if decode.num_beams > 1:
            return "beam search does not draft; decoded without the assistant"
        if decode.temperature:
            return "sampled text is not drafted; decoded without the assistant"
        only = None if assistant is None else assistant.only_language
        if only is not None and not {None, only}.issuperset(languages):
            return f"the assistant model knows {language_name(only)} alone; decoded without it"
        return None

    def _previous_text(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Hot words and prompt as tokens, at most half of what a text may hold; a warning if cut.

        As in openai/whisper the prompt keeps its end. Hot words come first and are cut last.
        """
        longest = self.models.special_tokens.longest_previous
        hotwords = self._tokens(", ".join(self.options.hotwords))
        prompt = self._tokens(self.options.prompt)
        kept = hotwords[:longest]
        kept += prompt[max(0, len(prompt) - (longest - len(kept))) :]
        if len(kept) == len(hotwords) + len(prompt):
            return tuple(kept), ()
        return tuple(kept), (
            f"prompt, hotwords: {len(kept)} tokens fit beside the transcript; the rest is ignored",
        )

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a client's text: names of special tokens in it are text like any other."""
        text = text.strip()
        if not text:
            return []
        tokens = self.models.tokenizer.encode(
            f" {text}", add_special_tokens=False, split_special_tokens=True
        )
        return [token for token in tokens if token < self.models.special_tokens.end_of_text]


def _decodes_timestamps(options: DecodeOptions) -> bool:
    """Whether Whisper writes timestamps into its text.

    Beams that must place timestamps too find worse texts: there sentences are timed by attention.
    """
    return options.timestamps and options.num_beams == 1
