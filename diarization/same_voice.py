"""From which similarity on two embeddings are taken for one voice, by the model that made them.

A cosine says nothing without its model: what one calls the same person, another calls strangers. So
the default threshold of known speakers belongs to the embedding model, and where nobody has
measured one there is none. Weights are told apart by their architecture, as that is all that a
loaded model says of itself: pyannote publishes one training of WeSpeaker's ResNet34 on 80 mel
bands, and the same network before its last fine-tuning, with which the figure was measured, differs
little from it; on 32 bands it is the demo's.
"""

from __future__ import annotations

# By class and mel bands. The first was chosen with scripts/bench voices, the second with
# scripts/bench speakers.
SAME_VOICE = {
    ("WeSpeakerResNet34", 80): 0.45,
    ("WeSpeakerResNet34", 32): 0.78,
}


def same_voice(model: object) -> float | None:
    """The least cosine at which embeddings of `model`, one of pyannote's, are taken for the same
    voice; None where it was never measured.
    """
    bands: int = getattr(getattr(model, "hparams", None), "num_mel_bins", 0)
    return SAME_VOICE.get((type(model).__name__, bands))
