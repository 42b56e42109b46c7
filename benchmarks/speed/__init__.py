"""Times decoding, compared with transformers' pipeline and CTranslate2."""
