"""Runs OpenVINO GenAI for worker_peer.py: JSON lines in, JSON lines out. Needs its own venv.

python -P openvino_worker.py MODEL_FOLDER THREADS
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import openvino_genai as genai  # type: ignore[import-not-found]  # only in its own venv


def main() -> None:
    """Load the model, then answer each line of standard input."""
    # Libraries may print: their standard output goes to the log, ours to the benchmark.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder, threads = sys.argv[1], int(sys.argv[2])
    engine = Engine(folder, threads)
    print(json.dumps({"ready": True, "version": genai.__version__}), file=replies)
    for line in sys.stdin:
        print(json.dumps(engine.answer(json.loads(line))), file=replies)


class Engine:
    """A continuous-batching pipeline with prefix caching."""

    def __init__(self, folder: str, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 64
        options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16"}
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._next_id = 0

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Run all prompts of a question at once."""
        prompts = [self._render(p, question["chat"]) for p in question["prompts"]]
        started = time.perf_counter()
        handles = [self._add(prompt, question) for prompt in prompts]
        outputs: list[list[int]] = [[] for _ in handles]
        times: list[list[float]] = [[] for _ in handles]
        busy = True
        while busy:
            busy = self._pipeline.has_non_finished_requests()
            if busy:
                self._pipeline.step()
            now = time.perf_counter() - started
            for handle, output, seen in zip(handles, outputs, times, strict=True):
                while handle.can_read():
                    for piece in handle.read().values():
                        output += piece.generated_ids
                    seen.append(now)
        wall = time.perf_counter() - started
        answers = [
            {
                "first_seconds": seen[0] if seen else wall,
                "last_seconds": seen[-1] if seen else wall,
                "output_tokens": len(output),
                "prompt_tokens": None,
                "cached_tokens": None,
                "text": self._tokenizer.decode(output),
            }
            for output, seen in zip(outputs, times, strict=True)
        ]
        return {"wall_seconds": wall, "answers": answers}

    def _add(self, prompt: str, question: dict[str, Any]) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = question["max_tokens"]
        config.do_sample = False
        if question["schema"] is None:
            config.ignore_eos = True
        else:
            schema = json.dumps(question["schema"])
            config.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
        self._next_id += 1
        return self._pipeline.add_request(self._next_id, prompt, config)

    def _render(self, prompt: str, chat: bool) -> str:
        if not chat:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        text: str = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return text


if __name__ == "__main__":
    main()
