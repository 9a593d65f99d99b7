"""json_of_literal: a Python or JSON literal, as models write them in f(a=1), as JSON text."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

_NAMES = {"true": True, "false": False, "null": None}


def json_of_literal(text: str) -> str | None:
    """Return text as JSON, or None if it is no literal that JSON can hold."""
    try:
        return _dumps(json.loads(text))
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in what the model wrote
            node = ast.parse(text.strip(), mode="eval").body
        return _dumps(_value(node))
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _dumps(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # A lone surrogate has no UTF-8 form; as an escape it is JSON all the same.
    return text if _is_encodable(text) else json.dumps(value, allow_nan=False)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(node: ast.expr) -> Any:
    """Evaluate a literal; raises ValueError for anything else."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
    raise ValueError(f"not a literal: {ast.dump(node)}")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no string")
