"""GBNF read and matched as the notation means it."""

from __future__ import annotations

import itertools
import time
from random import Random

import pytest
from support.byte_vocabulary import byte_vocabulary
from support.grammar_rig import GrammarRig

from runtime.grammars.gbnf import lark_of_gbnf
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepared import GrammarEngine

RIG = GrammarRig(GrammarEngine.LLGUIDANCE, byte_vocabulary())

ARITHMETIC = """
# comments and line breaks
root  ::= expr        # the entry
expr  ::= term (("+" | "-") term)*
term  ::= [0-9]+
        | "(" expr ")"
"""


@pytest.mark.parametrize(
    ("grammar", "legal", "illegal"),
    [
        (ARITHMETIC, ["1", "12+(3-4)", "((7))"], ["", "1+", "(1", "1)"]),
        ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
        ('root ::= [a-z]* "xyz"', ["xyz", "axyzxyz"], ["xy", "xyza"]),
        ('root ::= "x" root "y" | ""', ["", "xy", "xxyy"], ["x", "xxy"]),
        ('root ::= w "-" w\nw ::= ("a" | "b"){2,3}', ["ab-ba", "aaa-bb"], ["a-bb", "aaaa-bb"]),
        ('root ::= "a"{2} "b"? "c"+ "d"{1,}', ["aacd", "aabccdd"], ["acd", "aabbcd", "aac"]),
        ("root ::= [^a-z\\n] .", ["A\n", "\u00e9!"], ["a!", "\n!", "A"]),
        ("root ::= [a\\-z] [\\]^]", ["-]", "a^", "z]"], ["b]", "-a"]),
        (
            'root ::= "\\x41\\u00e9\\U0001f600" "\\"\\\\\\n/"',
            ['A\u00e9\U0001f600"\\\n/'],
            ["A", "A\u00e9"],
        ),
        ('root ::= a-b c_d\na-b ::= "1"\nc_d ::= "2"', ["12"], ["1", "21"]),
    ],
)
def test_a_grammar_takes_its_texts_and_no_others(
    grammar: str, legal: list[str], illegal: list[str]
) -> None:
    compiled = RIG.ebnf(grammar)

    assert [text for text in legal if not RIG.takes(compiled, text)] == []
    assert [text for text in illegal if RIG.takes(compiled, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start ::= "a"', "no rule called root"),
        ("root ::= word", "rule root uses word"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule root is defined twice"),
        ('root ::= "a', "line 1: cannot be read"),
        ('root ::=\n("a"', "line 2: unmatched `\\("),
        ('root ::= "a")', "unmatched `\\)`"),
        ('root ::= * "a"', "nothing to repeat"),
        ('root ::= "a"{5,2}', "ends before it begins"),
        ('root ::= "a"{1000000}', "more than 100000 times"),
        ("root ::= [z-a]", "range z-a"),
        ("root ::= []", "allows no character"),
        ("root ::= [^\\U00000000-\\U0010FFFF]", "allows no character"),
        ("root ::= [^\\x00-\\uD7FF\\uE000-\\U0010FFFF]", "allows no character"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\ud800"', "is not a character"),
        ('root ::= root "a"', "rule root can never end"),
        ('root ::= "a" | b\nb ::= "(" b ")"', "rule b can never end"),
        ("root ::= " + "(" * 60_000, "nested deeper than 100"),
    ],
)
def test_an_unreadable_or_endless_grammar_is_refused_with_its_reason(
    grammar: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        lark_of_gbnf(grammar)


WORDS = [f"word{i}" for i in range(20_000)]


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " | ".join(f'"{word}"' for word in WORDS),
        'root ::= w\nw ::= "(" w ")" | ' + " | ".join(f'"{word[4:]}"' for word in WORDS),
        "root ::= "
        + " | ".join(f"r{i}" for i in range(6_000))
        + "\n"
        # Each rule after the one that needs it: all but the last end by what is known last.
        + "\n".join(f'r{i} ::= "{i}"' for i in reversed(range(6_000))),
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(8_000))
        + '\nr8000 ::= "b"',
        'root ::= "(" root ")" | r0\n'
        + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(400))
        + '\nr400 ::= "b"',
    ],
    ids=["texts", "texts beside recursion", "rules", "long chain", "chain beside recursion"],
)
def test_a_long_grammar_takes_time_as_it_is_long(grammar: str) -> None:
    RIG.ebnf('root ::= "a"')
    began = time.thread_time()
    RIG.ebnf(grammar)
    assert time.thread_time() - began < 10.0  # quadratic work takes minutes


def test_texts_that_begin_alike_are_all_legal_beside_recursion_and_no_others() -> None:
    random = Random(7)
    words = sorted({"".join(random.choices("ab", k=random.randrange(7))) for _ in range(60)})
    options = " | ".join(f'"{word}"' for word in words)
    compiled = RIG.ebnf(f'root ::= "(" root ")" | (w | "c") w\nw ::= {options}')

    for left, right in itertools.product([*words, "c"], words):
        assert not (text := left + right) or RIG.takes(compiled, f"({text})"), text
    all_texts = {left + right for left, right in itertools.product([*words, "c"], words)}
    for length in range(1, 6):
        for letters in itertools.product("ab", repeat=length):
            text = "".join(letters)
            assert RIG.takes(compiled, text) == (text in all_texts), text


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "(" root ")" | "' + "a" * 70_000 + '"', "70002 characters .* at most 60000"),
        (
            "root ::= r0\n"
            + "\n".join(f'r{i} ::= "x" | r{i + 1}' for i in range(3_000))
            + '\nr3000 ::= "end"',
            "lead through 3001 others, at most 500",
        ),
    ],
)
def test_a_grammar_that_the_engine_would_choke_on_is_refused_with_its_limit(
    grammar: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        lark_of_gbnf(grammar)


def test_rules_that_need_each_other_end_if_one_of_them_can() -> None:
    assert lark_of_gbnf('root ::= a "."\na ::= "(" b ")"\nb ::= a | c\nc ::= b | "x"')
    with pytest.raises(GrammarError, match="rule a can never end"):
        lark_of_gbnf('root ::= a | "."\na ::= "(" b ")"\nb ::= a | c\nc ::= b "x"')
