"""Formulas that only a few values satisfy, as those values."""

from __future__ import annotations

import json
from itertools import product

from .arrays import Arrays
from .formulas import NEVER, Formula
from .limits import MAX_UNIQUE_VALUES
from .number_lark import decimal_text
from .numbers import Numbers
from .objects import Objects
from .regex_ast import Nothing, Words
from .shapes import Shape
from .translation import Translation

_MAX_DEPTH = 6


class FiniteValues:
    """Lists the values of formulas, as canonical JSON texts."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation

    def of(self, formula: Formula, depth: int = 0) -> list[str] | None:
        """All values, each once; None if there are too many to tell apart.

        Equal values have equal texts: keys are sorted for that.
        """
        if depth > _MAX_DEPTH:
            return None
        return self._of_shape(self._translation.shape(formula), depth)

    def _of_shape(self, shape: Shape, depth: int) -> list[str] | None:
        found: dict[str, None] = {}
        if shape.null:
            found["null"] = None
        for value in sorted(shape.booleans):
            found[json.dumps(value)] = None
        parts = [self._of_numbers(case) for case in shape.numbers]
        parts.append(_of_strings(shape))
        parts.extend(self._of_array(case, depth) for case in shape.arrays)
        parts.extend(self._of_object(case, depth) for case in shape.objects)
        for part in parts:
            if part is None:
                return None
            found.update(dict.fromkeys(part))
        return list(found) if len(found) <= MAX_UNIQUE_VALUES else None

    def _of_numbers(self, case: Numbers) -> list[str] | None:
        if case.values is None:
            return None
        return [decimal_text(value) for value in case.values]

    def _of_array(self, case: Arrays, depth: int) -> list[str] | None:
        if case.high is None or case.contains or case.is_unique or case.high > 4:
            return None
        items = [self.of(case.item(index), depth + 1) for index in range(case.high)]
        texts: list[str] = []
        for count in range(case.low, case.high + 1):
            chosen = items[:count]
            if any(values is None for values in chosen):
                return None
            rows = product(*(values for values in chosen if values is not None))
            for row in rows:
                texts.append(f"[{','.join(row)}]")
                if len(texts) > MAX_UNIQUE_VALUES:
                    return None
        return texts

    def _of_object(self, case: Objects, depth: int) -> list[str] | None:
        if case.rest or case.some or case.high is not None or case.low > len(case.required):
            return None
        texts = [""]
        for name, formula in sorted(case.properties):
            if formula == NEVER:
                continue
            values = self.of(formula, depth + 1)
            if values is None:
                return None
            options = [f"{json.dumps(name)}:{value}" for value in values]
            if name not in case.required:
                options.append("")
            texts = [
                ",".join(part for part in (text, option) if part)
                for text in texts
                for option in options
            ]
            if len(texts) > MAX_UNIQUE_VALUES:
                return None
        return [f"{{{text}}}" for text in texts]


def _of_strings(shape: Shape) -> list[str] | None:
    if isinstance(shape.strings, Nothing):
        return []
    if not isinstance(shape.strings, Words) or len(shape.strings.words) > MAX_UNIQUE_VALUES:
        return None
    return [json.dumps(word) for word in shape.strings.words]
