"""Runs transformers' generate for worker_peer.py: JSON lines in, JSON lines out.

python -P transformers_worker.py MODEL_FOLDER THREADS
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria


def main() -> None:
    """Load the model, then answer each line of standard input."""
    # Libraries may print: their standard output goes to the log, ours to the benchmark.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(int(sys.argv[2]))
    engine = Engine(sys.argv[1])
    print(json.dumps({"ready": True, "version": transformers.__version__}), file=replies)
    with torch.inference_mode():
        for line in sys.stdin:
            print(json.dumps(engine.answer(json.loads(line))), file=replies)


class Clock(StoppingCriteria):
    """Notes the time of every step; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Engine:
    """A model in bfloat16 and its tokenizer, padding on the left."""

    def __init__(self, folder: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model = model.eval()
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.generation_config.pad_token_id = self._tokenizer.pad_token_id
        self._grammars: dict[str, Any] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Run all prompts of a question as one batch."""
        options: dict[str, Any] = {"max_new_tokens": question["max_tokens"], "do_sample": False}
        if question["schema"] is None:
            options["min_new_tokens"] = question["max_tokens"]
        else:
            try:
                options["logits_processor"] = [self._grammar_mask(question["schema"])]
            except ImportError:
                return {"not_available": "transformers follows a schema only with xgrammar"}
        prompts = [self._render(prompt, question["chat"]) for prompt in question["prompts"]]
        clock = Clock()
        started = time.perf_counter()
        batch = self._tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False
        )
        output = self._model.generate(**batch, stopping_criteria=[clock], **options)
        wall = time.perf_counter() - started
        rows = output[:, batch["input_ids"].shape[1] :].tolist()
        if question["schema"] is not None:
            rows = [self._until_end(row) for row in rows]
        answers = [
            {
                "first_seconds": clock.times[0] - started,
                "last_seconds": clock.times[len(row) - 1] - started,
                "output_tokens": len(row),
                "prompt_tokens": int(count),
                "cached_tokens": None,
                "text": self._tokenizer.decode(row, skip_special_tokens=True),
            }
            for row, count in zip(rows, batch["attention_mask"].sum(dim=1).tolist(), strict=True)
        ]
        return {"wall_seconds": wall, "answers": answers}

    def _until_end(self, row: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return row[: row.index(end) + 1] if end in row else row

    def _render(self, prompt: str, chat: bool) -> str:
        if not chat:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    def _grammar_mask(self, schema: dict[str, Any]) -> Any:
        import xgrammar
        from xgrammar.contrib.hf import LogitsProcessor

        text = json.dumps(schema)
        if text not in self._grammars:
            vocabulary = xgrammar.TokenizerInfo.from_huggingface(
                self._tokenizer, vocab_size=self._model.config.vocab_size
            )
            compiler = xgrammar.GrammarCompiler(vocabulary)
            self._grammars[text] = compiler.compile_json_schema(text, any_whitespace=False)
        return LogitsProcessor(self._grammars[text])


if __name__ == "__main__":
    main()
