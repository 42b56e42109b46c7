"""Hot words: proposes a client's phrases for unsure parts of a text that sound alike.

Whisper writes a name that it does not expect as something that sounds like it, and is not sure of
that. So only parts of one to three words with an unlikely token are compared with the phrases. The
comparison is rough and proposes a few phrases too many; `asr.engine.rescoring` asks the audio.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.rescoring import Alternative
from whosaid.asr.output.words import WITHOUT_SPACES, split_words
from whosaid.payload.parameters import HotWord
from whosaid.transcript import ends_sentence

# Chosen on LibriSpeech and synthetic voices (docs/benchmarks/words.md).
UNSURE = math.log(0.7)  # the log-probability of a part's least likely token, at most
ALIKE = 0.52  # the least similarity of a part and a phrase
MOST_PHRASES = 3  # for one part of a text
MOST_WORDS, MOST_PIECES, MOST_TOKENS = 3, 8, 12  # of a part; pieces without spaces between words
SHORTEST_SOUND = 3
MOST_ALTERNATIVES = 16  # of a window: one pass scores them
# Latin letters that sound alike, roughly, in the languages of Europe.
LATIN = """
    ph>f ck>k sch>sh cz>ch tch>ch x>ks qu>kw wh>w gh>g ce>se ci>si c>k q>k z>s y>i j>i v>f w>f
    ou>u oo>u ee>i ea>i ie>i ae>e ai>e ei>e
"""
REPEATED, CONSONANT = re.compile(r"(.)\1+"), re.compile("([^aeiou])")


def sound(text: str) -> str:
    """Return a rough phonetic spelling: Latin letters by LATIN, others without their marks."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    spelt = "".join(each for each in folded if unicodedata.category(each)[0] in "LN")
    for letters, _, written in (rule.partition(">") for rule in LATIN.split()):
        spelt = spelt.replace(letters, written)
    return REPEATED.sub(r"\1", spelt)


class Match(NamedTuple):
    """A phrase, and how similar it sounds to a text: 1 if it sounds the same."""

    similarity: float
    phrase: str


@dataclass(frozen=True)
class HotWords:
    """A client's phrases; they are spelt by sound when a text is first compared with them."""

    phrases: tuple[str | HotWord, ...] = ()

    @cached_property
    def _sounds(self) -> list[tuple[str, str]]:
        """Return every way in which phrases sound, and the phrase of each."""
        named = (HotWord(text=each) if isinstance(each, str) else each for each in self.phrases)
        return [(sound(way), each.text) for each in named for way in (each.text, *each.sounds_like)]

    def alike(self, texts: Sequence[str]) -> list[list[Match]]:
        """Return for each text the phrases that sound most like it, at most MOST_PHRASES.

        The similarity is 1 less half the edits (Levenshtein 1966) between spellings with doubled
        consonants, for each letter of the longer sound. So vowels, which are spelt in more ways,
        count half. A phrase that the text has already is left out.
        """
        from rapidfuzz.distance import Levenshtein  # not above: scripts/gpu-check runs without it
        from rapidfuzz.process import cdist

        spelt, known = [*map(sound, texts)], [each for each, _ in self._sounds]
        doubled = ([CONSONANT.sub(r"\1\1", each) for each in some] for some in (spelt, known))
        edits = cdist(*doubled, scorer=Levenshtein.distance)
        lengths = ([max(1, len(each)) for each in some] for some in (spelt, known))
        similarity = 1 - edits / (2 * np.maximum.outer(*lengths))
        found = []
        for text, each in zip(texts, similarity, strict=True):
            near = np.flatnonzero(each >= ALIKE)
            matches: dict[str, float] = {}
            for place in near[np.argsort(-each[near], kind="stable")].tolist():
                matches.setdefault(self._sounds[place][1], float(each[place]))
            others = [Match(matches[one], one) for one in matches if not _holds(text, one)]
            found.append(others[:MOST_PHRASES])
        return found


def _holds(text: str, phrase: str) -> bool:
    """Return whether the words of a phrase are in a text, in any case."""
    words, wanted = (" ".join(each.casefold().split()) for each in (text, phrase))
    return f" {wanted} " in f" {words} "


@dataclass(frozen=True, eq=False)
class HotWordProposer:
    """Proposes hot words for the texts of one checkpoint (`asr.engine.rescoring.Proposer`)."""

    models: WhisperModels
    hotwords: HotWords

    def propose(
        self, prompt: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[Alternative]:
        """Return the most similar phrases for unsure parts, at most MOST_ALTERNATIVES."""
        language = self.models.special_tokens.written_language(prompt)
        parts = [*self._unsure_parts(tokens, log_probs, language)]
        texts = [self.models.text_of(tokens[first:stop]) for first, stop in parts]
        if not parts:
            return []
        matches = [
            (match.similarity, part, self._written(match.phrase, text, tokens[: part[0]]))
            for part, text, found in zip(parts, texts, self.hotwords.alike(texts), strict=True)
            for match in found
        ]
        matches.sort(key=lambda match: -match[0])
        return [
            Alternative(*part, written)
            for _, part, written in matches[:MOST_ALTERNATIVES]
            if written != tuple(tokens[slice(*part)])
        ]

    def _unsure_parts(
        self, tokens: Sequence[int], log_probs: Sequence[float], language: str | None
    ) -> Iterator[tuple[int, int]]:
        """Yield start and stop of the words between punctuation that have an unlikely token."""
        special, text_of = self.models.special_tokens, self.models.text_of
        places = [place for place, token in enumerate(tokens) if token < special.end_of_text]
        text = special.text_tokens(tokens)
        spans = list[tuple[int, int]]()
        for word in split_words(text, text_of, language):
            spoken = word.first + word.spoken
            opening = text_of(text[word.first : spoken]).strip()
            first, last = spoken if opening else word.first, word.first + word.silent - 1
            spans.append((places[first], places[last] + 1))
        most = MOST_PIECES if language in WITHOUT_SPACES else MOST_WORDS
        for first, (start, _) in enumerate(spans):
            for number, (begin, stop) in enumerate(spans[first : first + most]):
                adjoins = number == 0 or begin == spans[first + number - 1][1]
                if not adjoins or stop - start > MOST_TOKENS:
                    break
                unsure = min(log_probs[start:stop]) <= UNSURE
                if unsure and len(sound(text_of(tokens[start:stop]))) >= SHORTEST_SOUND:
                    yield start, stop

    def _written(self, phrase: str, text: str, before: Sequence[int]) -> tuple[int, ...]:
        """Return a phrase's tokens with the space and the capital with which `text` begins."""
        earlier = self.models.text_of(self.models.special_tokens.text_tokens(before))
        begins = not earlier.strip() or ends_sentence(earlier)
        if begins and text.strip()[:1].isupper():
            phrase = phrase[:1].upper() + phrase[1:]
        return tuple(self.models.tokens_of(f" {phrase}" if text[:1].isspace() else phrase))
