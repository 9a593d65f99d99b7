"""sampling_params of /generate and Engine: the body and its refusals."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from runtime.grammars.spec import JsonWhitespace

from .grammar_fields import GrammarField, native_grammar
from .sampling_fields import AnyValue, SamplingFields
from .unavailable import refuse_if_set
from .unknown_fields import refuse_unknown_sampling


class NativeSampling(SamplingFields):
    """The object sampling_params; null stands for the default of any field."""

    model_config = ConfigDict(extra="allow")  # refused in explicit, if they are set

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    regex: AnyValue = None
    ebnf: AnyValue = None
    json_schema: AnyValue = None
    structural_tag: AnyValue = None
    choice: AnyValue = None
    beam_width: AnyValue = None

    def explicit(self) -> dict[str, Any]:
        """Return what is set, as SamplingParams fields; refuse what is not offered (BadRequest)."""
        refuse_unknown_sampling(self.unknown, type(self).model_fields)
        refuse_if_set("beam search", beam_width=self.beam_width)
        values = super().explicit()
        for name in ("max_new_tokens", "min_new_tokens"):
            if (value := getattr(self, name)) is not None:
                values[name] = value
        return values

    def grammar(self, whitespace: JsonWhitespace) -> GrammarField | None:
        """Return the grammar that the output follows; None if it is free. Raises BadRequest.

        whitespace is that of JSON where json_whitespace is not set.
        """
        return native_grammar(
            self.whitespace(whitespace),
            json_schema=self.json_schema,
            regex=self.regex,
            ebnf=self.ebnf,
            structural_tag=self.structural_tag,
            choice=self.choice,
        )
