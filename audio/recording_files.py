"""Which files of a folder are recordings: for whoever takes folders, `transcribe` and `archive`.

Names decide what is looked for, never what is accepted: a file's content does that, and a file that
is named by itself is taken whatever it is called.
"""

from __future__ import annotations

import re

# How the names of recordings end, the dot included; to be matched in full.
ENDING = re.compile(
    r"\.(3gp|aac|ac3|aiff?|amr|asf|au|avi|caf|flac|flv|m4[abv]|mk[av]|mov|mp[234]|mpeg|mpga?|og[agv]"
    r"|opus|spx|tta|w64|wav|web[am]|wm[av]|wv)",
    re.IGNORECASE,
)
