"""transformers' pipeline as insanely-fast-whisper calls it: strided chunks of 30 s in batches."""

from typing import Any, cast

from transformers import AutomaticSpeechRecognitionPipeline

from tests.support.speech import Samples
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.timebase import SAMPLE_RATE

CHUNK_SECONDS = 30


class Pipeline:
    """The pipeline on a model's weights; greedy unless `generate` says otherwise."""

    def __init__(self, models: WhisperModels, **generate: Any) -> None:  # noqa: ANN401
        self._multilingual = models.special_tokens.multilingual
        self._generate = {"num_beams": 1, **generate}
        self._pipeline = AutomaticSpeechRecognitionPipeline(
            model=in_transformers(models.model),
            tokenizer=cast(Any, models.tokenizer),
            feature_extractor=models.feature_extractor,
            device=models.device,
        )

    def transcribe(
        self,
        samples: Samples,
        batch_size: int,
        language: str | None = None,
        timestamps: bool | str = True,
    ) -> str:
        """Return the text of a whole recording; without a language it is detected."""
        task = {"task": "transcribe", "language": language} if self._multilingual else {}
        answer: Any = self._pipeline(
            {"raw": samples, "sampling_rate": SAMPLE_RATE},
            chunk_length_s=CHUNK_SECONDS,
            batch_size=batch_size,
            return_timestamps=timestamps,
            generate_kwargs={**task, **self._generate},
        )
        return str(answer["text"])
