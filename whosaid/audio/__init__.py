"""Decodes untrusted audio files to samples."""

import re

# File name endings of recordings, for `fullmatch`. They select which files of a folder are opened.
# The content of a file decides whether it is accepted.
ENDING = re.compile(
    r"\.(3g[2ap]|3gpp|aa3|aac|ac3|adts|aif[cf]?|amr|ape|asf|au|avi|awb|caf|dff|dsf|dss|dts|dtshd"
    r"|dv|eac3|ec3|f4[av]|flac|flv|gsm|gxf|loas|m2ts?|m4[abrv]|m[12]a|mk[av]|mlp|mmf|mov|mp[1234]|mpc"
    r"|mpeg|mpga?|mpa|mts|mxf|nut|og[agmv]|oma|opus|qcp|qta?|ra|rm|snd|spx|tak|thd|ts|tta|voc|vob|w64"
    r"|wave?|web[am]|wm[av]|wtv|wv)",
    re.IGNORECASE,
)
