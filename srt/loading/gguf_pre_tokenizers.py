"""How a byte-level vocabulary treats text before merging, by the name in tokenizer.ggml.pre.

A wrong split gives ids that the model never saw, so an unknown name is an error, not a default. The
patterns and flags are those of the tokenizer.json files that the models were published with.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from ..errors import ModelLoadError

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class ByteLevelRules:
    """What the merges of a vocabulary presuppose.

    pattern None: GPT-2's own split. ignore_merges: a word that is a token is taken whole, whatever
    the merges say. normalizes_nfc: text is composed first. adds_bos: what a file without the flag
    means.
    """

    pattern: str | None = None
    splits_digits: bool = False
    ignore_merges: bool = False
    normalizes_nfc: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self, add_space_prefix: bool) -> pre_tokenizers.PreTokenizer:
        """The split, followed by the spelling of bytes as characters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.splits_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        spelling = pre_tokenizers.ByteLevel(
            add_prefix_space=add_space_prefix, use_regex=self.pattern is None
        )
        return pre_tokenizers.Sequence([*steps, spelling])


_GPT2 = ByteLevelRules()
_SINGLE_DIGITS = ByteLevelRules(splits_digits=True)
_LLAMA3 = ByteLevelRules(pattern=_LLAMA3_PATTERN, ignore_merges=True, adds_bos=True)
_QWEN2 = ByteLevelRules(pattern=_QWEN2_PATTERN, normalizes_nfc=True)

_RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": ByteLevelRules(pattern=_TEKKEN_PATTERN, ignore_merges=True, adds_bos=True),
}


def byte_level_rules(name: str) -> ByteLevelRules:
    """The rules that tokenizer.ggml.pre calls name; raises ModelLoadError if there are none."""
    rules = _RULES.get(name)
    if rules is None:
        raise ModelLoadError(
            f"tokenizer.ggml.pre is {name!r}, a way of splitting text that is not known here; "
            f"known are {', '.join(sorted(_RULES))}. Pass the model's own tokenizer folder with "
            "--tokenizer-path"
        )
    return rules
