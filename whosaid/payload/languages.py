"""Whisper's languages, and the names that clients may use for them.

A client may send Whisper's code, an ISO 639 code of two or three letters (even if withdrawn), a BCP
47 tag, a POSIX locale, or the language's English or own name. `auto` and similar words request
detection. The first name of each row is openai/whisper's; `tests/test_languages.py` compares the
rows with transformers' table. Codes and own names are from langcodes 3.5.1 and CLDR.
`SpecialTokens` lists the languages of a checkpoint.
"""

import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

ENGLISH = "en"
# Each row: Whisper's code | the script it writes if not Latin | names | other codes.
_TABLE = """
en||English|eng
zh|Hans|Chinese, Mandarin, Mandarin Chinese, 中文, 汉语, 漢語, 普通话, 國語|chi cmn zho
de||German, Deutsch|deu ger
es||Spanish, Castilian, español, castellano|spa
ru|Cyrl|Russian, русский|rus
ko|Kore|Korean, 한국어|kor
fr||French, français|fra fre
ja|Jpan|Japanese, 日本語|jpn
pt||Portuguese, português, Brazilian Portuguese, português brasileiro|por
tr||Turkish, Türkçe|tur
pl||Polish, polski|pol
ca||Catalan, Valencian, català|cat
nl||Dutch, Flemish, Nederlands, Vlaams|dut nld
ar|Arab|Arabic, العربية|ara arb
sv||Swedish, svenska|swe
it||Italian, italiano|ita
id||Indonesian, Bahasa Indonesia|in ind
hi|Deva|Hindi, हिन्दी, हिंदी|hin
fi||Finnish, suomi|fin
vi||Vietnamese, Tiếng Việt|vie
he|Hebr|Hebrew, עברית|heb iw
uk|Cyrl|Ukrainian, українська|ukr
el|Grek|Greek, Ελληνικά|ell gre
ms||Malay, Bahasa Melayu, Bahasa Malaysia|may msa zsm
cs||Czech, čeština|ces cze
ro||Romanian, Moldavian, Moldovan, română|mo ron rum
da||Danish, dansk|dan
hu||Hungarian, magyar|hun
ta|Taml|Tamil, தமிழ்|tam
no||Norwegian, Norwegian Bokmål, norsk, norsk bokmål, Bokmål|nb nob nor
th|Thai|Thai, ไทย|tha
ur|Arab|Urdu, اردو|urd
hr||Croatian, hrvatski|hrv scr
bg|Cyrl|Bulgarian, български|bul
lt||Lithuanian, lietuvių|lit
la||Latin, Lingua Latina|lat
mi||Maori, te reo Māori|mao mri
ml|Mlym|Malayalam, മലയാളം|mal
cy||Welsh, Cymraeg|cym wel
sk||Slovak, slovenčina|slk slo
te|Telu|Telugu, తెలుగు|tel
fa|Arab|Persian, Farsi, Dari, فارسی|fas per pes prs
lv||Latvian, latviešu|lav lvs
bn|Beng|Bengali, Bangla, বাংলা|ben
sr|Cyrl|Serbian, српски, srpski|hbs scc sh srp
az||Azerbaijani, azərbaycan|aze azj
sl||Slovenian, Slovene, slovenščina|slv
kn|Knda|Kannada, ಕನ್ನಡ|kan
et||Estonian, eesti|ekk est
mk|Cyrl|Macedonian, македонски|mac mkd
br||Breton, brezhoneg|bre
eu||Basque, euskara|baq eus
is||Icelandic, íslenska|ice isl
hy|Armn|Armenian, հայերեն|arm hye
ne|Deva|Nepali, नेपाली|nep npi
mn|Cyrl|Mongolian, монгол|khk mon
bs||Bosnian, bosanski|bos
kk|Cyrl|Kazakh, қазақ тілі, қазақ|kaz
sq||Albanian, shqip|alb als sqi
sw||Swahili, Kiswahili|swa swh
gl||Galician, galego|glg
mr|Deva|Marathi, मराठी|mar
pa|Guru|Punjabi, Panjabi, ਪੰਜਾਬੀ|pan
si|Sinh|Sinhala, Sinhalese, සිංහල|sin
km|Khmr|Khmer, ខ្មែរ|khm
sn||Shona, chiShona|sna
yo||Yoruba, Èdè Yorùbá|yor
so||Somali, Soomaali|som
af||Afrikaans|afr
oc||Occitan|oci
ka|Geor|Georgian, ქართული|geo kat
be|Cyrl|Belarusian, беларуская|bel
tg|Cyrl|Tajik, тоҷикӣ|tgk
sd|Arab|Sindhi, سنڌي|snd
gu|Gujr|Gujarati, ગુજરાતી|guj
am|Ethi|Amharic, አማርኛ|amh
yi|Hebr|Yiddish, ייִדיש|ji ydd yid
lo|Laoo|Lao, ລາວ|lao
uz||Uzbek, o'zbek|uzb uzn
fo||Faroese, føroyskt|fao
ht||Haitian Creole, Haitian, Kreyòl Ayisyen|hat
ps|Arab|Pashto, Pushto, پښتو|pbu pus
tk||Turkmen, türkmen dili|tuk
nn||Nynorsk, Norwegian Nynorsk, norsk nynorsk|nno
mt||Maltese, Malti|mlt
sa|Deva|Sanskrit, संस्कृत भाषा, संस्कृतम्|san
lb||Luxembourgish, Letzeburgesch, Lëtzebuergesch|ltz
my|Mymr|Myanmar, Burmese, မြန်မာ|bur mya
bo|Tibt|Tibetan, བོད་སྐད་|bod tib
tl||Tagalog, Filipino|fil tgl
mg||Malagasy|mlg plt
as|Beng|Assamese, অসমীয়া|asm
tt|Cyrl|Tatar, татар|tat
haw||Hawaiian, 'Ōlelo Hawai'i|
ln||Lingala|lin
ha||Hausa|hau
ba|Cyrl|Bashkir, башҡорт теле, башҡорт|bak
jw||Javanese, Basa Jawa, Jawa|jav jv
su||Sundanese, Basa Sunda|sun
yue|Hant|Cantonese, 粵語, 粤语, 廣東話, 广东话|
"""
_ROWS = [line.split("|") for line in _TABLE.split("\n") if line]
_NAMES = {code: names.split(", ") for code, _, names, _ in _ROWS}
_SCRIPTS = {code: (script or "Latn").lower() for code, script, _, _ in _ROWS}
CODES = tuple(_NAMES)

# Texts by which clients request detection, and texts that programs write for an unset value.
_DETECT = ("", "any", "auto", "auto-detect", "autodetect", "automatic", "detect", "detect-language")
NONE = frozenset({*_DETECT, "mul", "multi", "none", "null", "und", "undefined", "unknown"})
# Country codes that clients send for languages: a refusal suggests the language.
_EAST_ASIA = {"cn": "zh", "jp": "ja", "kr": "ko", "vn": "vi"}
_EUROPE = {"cz": "cs", "dk": "da", "gb": "en", "gr": "el", "ua": "uk"}
_COUNTRIES = _EAST_ASIA | _EUROPE | {"us": "en"}
# Names of a language in one script.
_WRITTEN = {
    **dict.fromkeys(("traditional-chinese", "chinese-traditional", "繁體中文"), "zh-hant"),
    **dict.fromkeys(("正體中文", "繁体中文"), "zh-hant"),
    **dict.fromkeys(("simplified-chinese", "chinese-simplified", "简体中文"), "zh-hans"),
}
# Regions that write another script than the language's usual script.
_REGIONS = {"zh-tw": "hant", "zh-hk": "hant", "zh-mo": "hant", "pa-pk": "arab"}
LONGEST = 64  # characters; every name is shorter
# Accents of Latin, Greek and Cyrillic letters, and apostrophes, are dropped.
_FOLDING: dict[int, str | None] = {
    **dict.fromkeys([*range(0x300, 0x370), *map(ord, "'`\u2018\u2019\u02bb")]),
    **dict.fromkeys(map(ord, "_-()"), " "),
}
_TAG = re.compile(r"(?P<code>[a-z]{2,3})(?P<rest>(-[a-z0-9]{1,8})*)([.@][\w.@-]*)?", re.ASCII)
_WITH_REMARK = re.compile(r"(?P<name>[^()]+)\([^()]*\)")


def language_code(text: str) -> str | None:
    """Return Whisper's code ("de") for a code, tag or name ("deu", "de-AT", "Deutsch"), or None."""
    return _read(text)[0]


def language_name(code: str) -> str:
    """Return the English name for Whisper's code, capitalised; the code itself if it is unknown."""
    return _NAMES.get(code, [code])[0].title()


def names_none(text: str) -> bool:
    """Return whether the text asks for detection: `auto`, empty, `null`."""
    return len(text) <= LONGEST and _folded(text) in NONE


def distinct_languages(texts: Iterable[str]) -> list[str]:
    """Drop requests for detection, and further names of the same language."""
    found: dict[str, str] = {}
    for text in texts:
        if not names_none(text):
            found.setdefault(language_code(text) or text, text)
    return list(found.values())


def script_warning(text: object) -> str | None:
    """Return a warning if a tag ("zh-TW") asks for an unusual script; Whisper cannot obey it."""
    code, script = _read(text) if isinstance(text, str) else (None, None)
    if code is None or script is None or script == _SCRIPTS[code]:
        return None
    name = language_name(code)
    return f"language: Whisper chooses the script of {name}, and may not write {script.title()}"


def parse_language(value: object) -> object:
    """Return Whisper's code for a text, None for detection. Raises PydanticCustomError."""
    if not isinstance(value, str):
        return value
    if names_none(value):
        return None
    code = language_code(value)
    if code is None:
        raise PydanticCustomError("language", _refusal(value))
    return code


Language = Annotated[str | None, BeforeValidator(parse_language)]


def _read(text: str) -> tuple[str | None, str | None]:
    """Return Whisper's code for a text, and the requested script in lower case."""
    if len(text) > LONGEST:
        return None, None
    names, codes = _keys()
    key = _folded(text)
    key = _WRITTEN.get(key, key)
    if key in names:
        return names[key], None
    tag = _TAG.fullmatch(key)
    if tag is None:
        remark = _WITH_REMARK.fullmatch(text.strip())
        return names.get(_folded(remark["name"])) if remark else None, None
    parts = tag["rest"].split("-")[1:]
    code = codes.get(tag["code"])
    if parts and len(parts[0]) == 3 and parts[0].isalpha():  # yue in zh-yue
        code = codes.get(parts[0])
    scripts = [part for part in parts if len(part) == 4 and part.isalpha()]
    regions = [_REGIONS.get(f"{code}-{part}") for part in parts]
    return code, next(filter(None, [*scripts, *regions]), None)


@cache
def _keys() -> tuple[dict[str, str], dict[str, str]]:
    names = {_folded(name): code for code, names in _NAMES.items() for name in names}
    codes = {each: row[0] for row in _ROWS for each in (row[0], *row[3].split())}
    return names, codes


def _folded(text: str) -> str:
    """Return the text without case, accents or apostrophes, and with hyphens between words."""
    letters = unicodedata.normalize("NFKD", text.casefold()).translate(_FOLDING)
    return unicodedata.normalize("NFC", "-".join(letters.split()))


def _refusal(text: str) -> str:
    names, _ = _keys()
    key = _folded(text[:LONGEST])
    near = [names[name] for name in get_close_matches(key, names, 1, 0.7)]
    if code := _COUNTRIES.get(key) or next(iter(near), None):
        return f"is not a language that Whisper knows; did you mean {language_name(code)} ({code})?"
    return (
        "should be a language that Whisper knows, by its code (de), a tag (de-AT) or its name"
        " (German, Deutsch); without one it is detected"
    )
