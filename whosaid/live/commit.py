"""Decides which words of a growing buffer are final.

The buffer is decoded again and again while it grows. Each hypothesis begins with the final words,
so no final word is ever taken back. A word becomes final if

- two successive hypotheses agree on it and on all words before it (LocalAgreement-2; Liu et al.
  2020, "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by Partial Hypothesis
  Selection"),
- its attention ends well before the audio does (compare AlignAtt; Papi et al. 2023), and
- another word or a pause follows it, because the last word may still become longer.

Successive numbers become final together, once both hypotheses have the same word behind them.
Whisper rewrites a number that goes on: "20" becomes "25", and "zero seven nine" becomes "079".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whosaid.asr import Hypothesis, HypothesisWord
from whosaid.transcript import letters

# Seconds of silence after a word that count as a following word.
PAUSE = 1.0
# Spelt digits of three letters or more in the languages that Whisper recognises best, and English
# numbers; from num2words 0.5.14. Chinese and Japanese digits are numeric characters.
_SPELT = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
hundred thousand million double triple oh
null eins zwei zwo drei vier fünf sechs sieben acht neun zehn
zéro deux trois quatre cinq sept huit neuf dix
cero uno dos tres cuatro cinco seis siete ocho nueve diez
due tre quattro cinque sei sette otto nove dieci
dois três quatro sete oito dez meia
nul één een twee drie vijf zes zeven negen tien
jeden dwa trzy cztery pięć sześć siedem osiem dziewięć dziesięć
ноль один два три четыре пять шесть семь восемь девять десять
нуль чотири п'ять шість сім вісім дев'ять
sıfır bir iki üç dört beş altı yedi sekiz dokuz
noll ett två fyra fem sex sju åtta nio tio seks syv otte åtte
nolla yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän kymmenen
nula jedna dva tři čtyři pět šest sedm osm devět deset
"""  # noqa: RUF001
SPELT = frozenset(_SPELT.split())
# A text with a larger zlib ratio repeats itself (openai/whisper, `transcribe.py`).
MAX_COMPRESSION_RATIO = 2.4


@dataclass(frozen=True)
class FinalWords:
    """The final words of a buffer and the last hypothesis after them, with times of the buffer.

    `prefix` has the tokens of the final `words`, with which the next hypothesis should begin.
    `draft` has the tokens after them in the last hypothesis, and `unstable` their words. `first`
    has the tokens before the first word, a timestamp.
    """

    words: tuple[HypothesisWord, ...] = ()
    prefix: tuple[int, ...] = ()
    unstable: tuple[HypothesisWord, ...] = ()
    draft: tuple[int, ...] = ()
    first: tuple[int, ...] = ()

    def updated(self, new: Hypothesis, seconds: float, margin: float) -> FinalWords:
        """Return the state after the hypothesis `new`, which begins with `prefix` and was decoded
        from `seconds` of the buffer.

        The attention of a final word ends `margin` seconds before their end. A hypothesis that
        repeats itself or has no words only clears the draft.
        """
        if new.compression_ratio > MAX_COMPRESSION_RATIO or not new.words:
            return replace(self, unstable=(), draft=())
        words = self._following(new)
        agreed = _agreed(self.unstable, words)
        count = 0
        while count < agreed and _is_settled(words, count, agreed, seconds, margin):
            count += 1
        first = new.words[0]
        return FinalWords(
            (*self.words, *words[:count]),
            new.tokens[: words[count - 1].stop] if count else self.prefix,
            words[count:],
            new.tokens[words[count - 1].stop if count else len(self.prefix) :],
            self.first if self.words else new.tokens[: first.stop - len(first.tokens)],
        )

    def forced(self) -> FinalWords:
        """Return the state with all unstable words final."""
        if not self.unstable:
            return self
        end = self.unstable[-1].stop - len(self.prefix)
        return FinalWords(
            self.words + self.unstable, self.prefix + self.draft[:end], first=self.first
        )

    def widest_gap(self, since: float) -> float:
        """Return the middle of the longest pause after final words that end at `since` or later."""
        following = [each.start for each in (*self.words[1:], *self.unstable[:1])]
        if len(following) < len(self.words):
            following.append(self.words[-1].end + PAUSE)
        gaps = [
            (start - word.end, (word.end + start) / 2)
            for word, start in zip(self.words, following, strict=True)
            if word.end >= since
        ]
        return max(gaps)[1]

    def from_second(self, cut: float) -> FinalWords:
        """Return the state without the buffer's first `cut` seconds; `cut` lies between words."""

        def shifted(word: HypothesisWord, stop: int) -> HypothesisWord:
            return replace(word, start=word.start - cut, end=word.end - cut, stop=stop)

        tokens, words = list(self.first), []
        for each in self.words:
            if each.start >= cut:
                tokens += each.tokens
                words.append(shifted(each, len(tokens)))
        prefix = tuple(tokens) if words else ()
        unstable = tuple(shifted(each, each.stop) for each in self.unstable)
        return FinalWords(tuple(words), prefix, unstable, self.draft, self.first)

    def _following(self, new: Hypothesis) -> tuple[HypothesisWord, ...]:
        """Return the words of `new` after the final words, and what the last final word gained."""
        final, begin = sum(len(word.text) for word in self.words), 0
        words = []
        for word in new.words:
            begin, end = begin + len(word.text), begin + len(word.text)
            if end > final:
                words.append(replace(word, text=word.text[max(0, final - end + len(word.text)) :]))
        return tuple(words)


def _agreed(before: Sequence[HypothesisWord], now: Sequence[HypothesisWord]) -> int:
    """Return the number of words that two hypotheses share at their start, by `spoken`."""
    count = 0
    for one, other in zip(before, now, strict=False):
        if spoken(one.text) != spoken(other.text):
            break
        count += 1
    return count


def _is_settled(
    words: Sequence[HypothesisWord], index: int, agreed: int, seconds: float, margin: float
) -> bool:
    """Return whether later audio cannot change a word, of which the first `agreed` are equal."""
    follows = index + 1
    is_number = _is_number(words[index].text)
    while is_number and follows < len(words) and _is_number(words[follows].text):
        follows += 1
    silent_for = seconds - words[follows - 1].end
    if follows == len(words):
        return silent_for >= PAUSE
    return silent_for >= margin and (follows < agreed or not is_number)


def spoken(text: str) -> str:
    """Return the letters of a word; without any, the stripped text."""
    return letters(text) or text.strip()


def _is_number(text: str) -> bool:
    """Return whether a word has digits or is a spelt number, alone or with hyphens."""
    parts = text.casefold().strip(" .,;:!?").split("-")
    return any(map(str.isnumeric, text)) or not SPELT.isdisjoint(parts)
