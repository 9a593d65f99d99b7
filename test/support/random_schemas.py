"""Random schemas and instances that are likely to be near them."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "ab", "c")
WORDS = ("", "a", "b", "ab", "aab", "b1", 'q"', "é")
NUMBERS = (0, 1, 2, 3, -1, 5, 10, 1.5, -2.5, 0.25, 100)
PATTERNS = ("a", "^a", "b$", "^[ab]+$", "^a?b*$", "[0-9]", "^(a|b1)$", "^(?!aa)")


class SchemaMaker:
    """Draws schemas from a small world, so that keywords meet and contradict each other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.has_definitions = self.random.random() < 0.3

    def root(self) -> Any:
        schema = self.schema(3)
        if self.has_definitions and isinstance(schema, dict):
            schema["$defs"] = {
                "x": self.schema(1),
                "y": {"type": "object", **self.about_objects(1)},
            }
        return schema

    def schema(self, depth: int) -> Any:
        pick = self.random
        if pick.random() < 0.06:
            return pick.random() < 0.7
        schema: dict[str, Any] = {}
        if pick.random() < 0.6:
            schema["type"] = self.types()
        parts = [self.about_numbers, self.about_strings, self.about_values]
        if depth > 0:
            parts += [self.about_arrays, self.about_objects, self.about_schemas] * 2
        for part in pick.sample(parts, pick.randint(1, 2)):
            schema.update(part(depth - 1))
        return schema

    def types(self) -> Any:
        names = ["null", "boolean", "integer", "number", "string", "array", "object"]
        if self.random.random() < 0.75:
            return self.random.choice(names[2:])
        return self.random.sample(names, self.random.randint(1, 3))

    def about_numbers(self, depth: int) -> dict[str, Any]:
        pick = self.random
        words = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
        found = {w: pick.choice(NUMBERS) for w in pick.sample(words, pick.randint(0, 2))}
        if pick.random() < 0.4:
            found["multipleOf"] = pick.choice((1, 2, 3, 5, 0.5, 0.25))
        return found

    def about_strings(self, depth: int) -> dict[str, Any]:
        pick = self.random
        found: dict[str, Any] = {}
        if pick.random() < 0.4:
            found["minLength"] = pick.randint(0, 2)
        if pick.random() < 0.4:
            found["maxLength"] = pick.randint(0, 3)
        if pick.random() < 0.4:
            found["pattern"] = pick.choice(PATTERNS)
        return found

    def about_values(self, depth: int) -> dict[str, Any]:
        count = self.random.randint(1, 4)
        if self.random.random() < 0.3:
            return {"const": self.value(1)}
        return {"enum": [self.value(1) for _ in range(count)]}

    def about_arrays(self, depth: int) -> dict[str, Any]:
        pick = self.random
        found: dict[str, Any] = {}
        for word, share in (("items", 0.5), ("contains", 0.3), ("unevaluatedItems", 0.1)):
            if pick.random() < share:
                found[word] = self.schema(depth)
        if pick.random() < 0.25:
            found["prefixItems"] = [self.schema(depth) for _ in range(pick.randint(1, 2))]
        for word, share, most in (
            ("minItems", 0.2, 2),
            ("maxItems", 0.3, 3),
            ("minContains", 0.1, 2),
            ("maxContains", 0.1, 2),
        ):
            if pick.random() < share:
                found[word] = pick.randint(0, most)
        if pick.random() < 0.15:
            found["uniqueItems"] = True
        return found

    def about_objects(self, depth: int) -> dict[str, Any]:
        pick = self.random
        found: dict[str, Any] = {}
        if pick.random() < 0.7:
            names = pick.sample(NAMES, pick.randint(1, 3))
            found["properties"] = {name: self.schema(depth) for name in names}
        if pick.random() < 0.3:
            found["patternProperties"] = {pick.choice(PATTERNS): self.schema(depth)}
        if pick.random() < 0.4:
            found["additionalProperties"] = pick.choice([False, False, self.schema(depth)])
        if pick.random() < 0.4:
            found["required"] = pick.sample(NAMES, pick.randint(1, 2))
        if pick.random() < 0.12:
            found["propertyNames"] = self.schema(0)
        if pick.random() < 0.12:
            found["minProperties"] = pick.randint(0, 2)
        if pick.random() < 0.12:
            found["maxProperties"] = pick.randint(0, 3)
        if pick.random() < 0.12:
            found["dependentRequired"] = {pick.choice(NAMES): [pick.choice(NAMES)]}
        if pick.random() < 0.12:
            found["dependentSchemas"] = {pick.choice(NAMES): self.schema(depth)}
        if pick.random() < 0.12:
            found["unevaluatedProperties"] = pick.choice([False, self.schema(depth)])
        return found

    def about_schemas(self, depth: int) -> dict[str, Any]:
        pick = self.random
        kind = pick.choice(("allOf", "anyOf", "oneOf", "not", "if", "$ref"))
        if kind == "$ref":
            if not self.has_definitions:
                return {}
            return {"$ref": pick.choice(("#/$defs/x", "#/$defs/y"))}
        if kind == "not":
            return {"not": self.schema(depth)}
        if kind == "if":
            found = {"if": self.schema(depth)}
            for word in ("then", "else"):
                if pick.random() < 0.7:
                    found[word] = self.schema(depth)
            return found
        return {kind: [self.schema(depth) for _ in range(pick.randint(1, 3))]}

    def value(self, depth: int) -> Any:
        """A JSON value, preferring what the schemas speak of."""
        pick = self.random
        kinds = ["null", "bool", "number", "number", "string", "string"]
        if depth > 0:
            kinds += ["array", "object", "object"]
        match pick.choice(kinds):
            case "null":
                return None
            case "bool":
                return pick.random() < 0.5
            case "number":
                return pick.choice(NUMBERS)
            case "string":
                return pick.choice(WORDS)
            case "array":
                return [self.value(depth - 1) for _ in range(pick.randint(0, 3))]
            case _:
                names = pick.sample((*NAMES, "z"), pick.randint(0, 3))
                return {name: self.value(depth - 1) for name in names}
