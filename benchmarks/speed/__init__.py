"""How fast decoding is, beside transformers' pipeline and CTranslate2, and what its parts cost."""
