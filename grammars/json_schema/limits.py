"""What a schema may cost: checked before anything is compiled, each named in its error.

A compile cannot be interrupted, so whatever could make one slow is bounded here.
"""

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_NODES = 5_000  # objects and arrays in the schema
MAX_SCALARS = 60_000  # other values in it
MAX_DEPTH = 64  # nesting of objects and arrays in the text
MAX_ENUM_VALUES = 50_000  # in all enums together
MAX_PROPERTIES = 2_000  # of one object, optional ones included
MAX_REPEATS = 100_000  # minLength, maxItems, {m,n} of a pattern ...
MAX_REACHED = 10_000_000  # characters or items that no output has: a higher maximum says nothing
MAX_REGEX_CHARACTERS = 2_048
MAX_REGEX_DEPTH = 50
MAX_ALTERNATIVES = 400  # cases of one type that a schema falls into
MAX_RULES = 5_000  # distinct sub-schemas after merging
MAX_GRAMMAR_CHARACTERS = 4_000_000
MAX_ARRAY_STATES = 400  # of counting contains, minItems and maxItems at once
MAX_UNIQUE_VALUES = 62  # values that uniqueItems can tell apart
MAX_COUNTED_STATES = 4_000  # of counting properties
MAX_STEPS = (
    30_000  # of work.py: 20 for combining two cases, 1 for a letter that is new to a pattern
)
MAX_NUMBER_DIGITS = 308  # of a number in the schema: any reader's floats hold them
