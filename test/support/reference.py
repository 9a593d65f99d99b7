"""What transformers computes from the bundled model's weights, in float32."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.srt.loading.resolve import resolve_model

BUNDLED_MODEL = "smollm2-135m-instruct"


class Reference:
    """One model and its tokenizer, as transformers loads them."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self.tokenizer = tokenizer

    @classmethod
    def of_bundled_model(cls) -> Reference:
        """Load the bundled model, converted to a folder that transformers reads."""
        folder = resolve_model(BUNDLED_MODEL, "float32")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder))

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return the next-token logits after every prefix of token_ids: [T, V] float32."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([token_ids])).logits[0]
        return logits

    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """Return log_softmax of logits: [T, V] float32."""
        return torch.log_softmax(self.logits(token_ids), dim=-1)

    def greedy(self, prompt_ids: list[int], num_tokens: int) -> list[int]:
        """Return what generate() appends to prompt_ids, up to the end-of-sequence token."""
        prompt = torch.tensor([prompt_ids])
        generated = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
        )
        new_ids: list[int] = generated[0, len(prompt_ids) :].tolist()
        return new_ids
