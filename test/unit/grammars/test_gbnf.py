"""GBNF read and matched as the notation means it."""

from __future__ import annotations

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
