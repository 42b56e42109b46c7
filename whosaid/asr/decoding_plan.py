"""Options of a transcription, and the plan by which a recording in known languages is decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.frontend.vad import DEFAULT_OPTIONS, VadOptions
from whosaid.asr.hotwords import HotWordProposer, HotWords
from whosaid.asr.language_timeline import LanguageTimeline
from whosaid.asr.output.chunks import ChunkReader
from whosaid.payload.languages import ENGLISH, language_name


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """How a recording is transcribed.

    `language` is a code or a name. None detects it: once, or with `multilingual` for each part of
    the recording. `prompt` precedes every window as previous text (Whisper's `initial_prompt`), for
    style and spelling. `hotwords` may replace unsure words that sound alike (`asr.hotwords`).
    `text` is a transcript from the client, whose words the result has (`asr.given_text`), without
    hot words. `decode` holds the engine's options; without a `fallback`
    there, the transcriber's is used. `vad` says what counts as speech; None means everything.
    """

    task: str = "transcribe"
    language: str | None = None
    multilingual: bool = False
    chunk_length_s: int = 30
    prompt: str = ""
    hotwords: HotWords = field(default_factory=HotWords)
    text: str = ""
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    vad: VadOptions | None = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class InLanguage:
    """The prompt and the reader for windows of one language."""

    prompt: tuple[int, ...]
    reader: ChunkReader


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """How a recording is decoded: each of its languages with its own prompt and reader.

    The transcript has `warnings`, then a warning of a second language if the plan
    `expects_one_language`, then `prompt_warnings`.
    """

    options: DecodeOptions
    timeline: LanguageTimeline
    languages: Mapping[str | None, InLanguage]
    expects_one_language: bool
    warnings: tuple[str, ...] = ()
    prompt_warnings: tuple[str, ...] = ()

    def at(self, position: int) -> InLanguage:
        return self.languages[self.timeline.language_at(position)]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the decoding of recordings with one set of models and the same options."""

    models: WhisperModels
    options: TranscriptionOptions

    def plan(self, timeline: LanguageTimeline) -> DecodingPlan:
        options, asked = self.options, self.options.decode
        assisted, warnings = self._use_assistant(timeline.languages)
        previous, prompt_warnings = self._previous_text()
        if options.multilingual and options.language is not None:
            english_only = not self.models.special_tokens.multilingual
            reason = "the model is English-only" if english_only else "the language was given"
            warnings += (f"multilingual: {reason}; other languages were not detected",)
        decode = replace(asked, timestamps=_decodes_timestamps(asked), assisted=assisted)
        if options.hotwords.phrases and not options.text:
            decode = replace(decode, proposer=HotWordProposer(self.models, options.hotwords))
        return DecodingPlan(
            decode,
            timeline,
            {each: self._in_language(each, previous) for each in timeline.languages},
            options.language is None and not options.multilingual and not previous,
            warnings,
            prompt_warnings,
        )

    def _in_language(self, language: str | None, previous: tuple[int, ...]) -> InLanguage:
        task, decode = self.options.task, self.options.decode
        prompt = self.models.special_tokens.prompt(
            language, task, _decodes_timestamps(decode), previous
        )
        written = ENGLISH if task == "translate" else language
        fallback = decode.fallback or DEFAULT_FALLBACK
        return InLanguage(prompt, ChunkReader(self.models, written, decode.timestamps, fallback))

    def _use_assistant(self, languages: Sequence[str | None]) -> tuple[bool, tuple[str, ...]]:
        """Return whether to draft, by default for recordings alone, and a warning if impossible."""
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
            return f"the assistant model knows only {language_name(only)}; decoded without it"
        return None

    def _previous_text(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the prompt's last tokens, at most half a text, and a warning if it was cut."""
        longest, text = self.models.special_tokens.longest_previous, self.options.prompt.strip()
        tokens = tuple(self.models.tokens_of(f" {text}")) if text else ()
        if len(tokens) <= longest:
            return tokens, ()
        warning = f"prompt: {longest} tokens fit beside the transcript; the rest is ignored"
        return tokens[-longest:], (warning,)


def _decodes_timestamps(options: DecodeOptions) -> bool:
    """Return whether Whisper writes timestamps: with beams, which then find worse texts, never."""
    return options.timestamps and options.num_beams == 1
