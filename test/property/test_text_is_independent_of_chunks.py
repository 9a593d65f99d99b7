"""Streamed text against text decoded at once, for random ids, chunks and stops."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_tokenizers

from runtime.srt.messages import DecodeOptions, FinishReason
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.tokenization.incremental import IncrementalDetokenizer
from runtime.srt.tokenization.stop_checker import StopChecker
from runtime.srt.tokenization.text_assembler import TextAssembler
from runtime.srt.tokenization.tokenizer import Tokenizer

VOCABULARIES = {
    "byte-level": tiny_tokenizers.byte_level(),
    "sentencepiece": tiny_tokenizers.sentencepiece(),
    "sentencepiece, spaces kept": tiny_tokenizers.sentencepiece(False),
}


def ids_in(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    hard = "\U0001f600\u6f22\u5b57 \u00e9 <|end|>the dog</s> \U0001f468\u200d\U0001f469"
    hard_ids = tokenizer.encode(hard, add_special_tokens=False)
    any_id = st.integers(0, tokenizer.vocab_size + 2)
    return st.lists(st.one_of(st.sampled_from(hard_ids), any_id), max_size=30)


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in zip(places, places[1:], strict=False)]


CUTS = st.lists(st.integers(0, 30), max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(VOCABULARIES)), st.booleans(), CUTS)
def test_chunks_joined_are_the_decoded_text(
    data: st.DataObject, name: str, skip: bool, cuts: list[int]
) -> None:
    tokenizer = VOCABULARIES[name]
    ids = data.draw(ids_in(tokenizer))
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip)

    text = "".join(detokenizer.push(chunk) for chunk in split(ids, cuts)) + detokenizer.finish()

    assert text == tokenizer.decode(ids, skip)
    if name == "byte-level":
        known = [i for i in ids if i < tokenizer.vocab_size]
        assert text == tokenizer.backend.decode(known, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(VOCABULARIES)))
def test_text_after_a_prompt_continues_the_prompt(data: st.DataObject, name: str) -> None:
    tokenizer = VOCABULARIES[name]
    text = data.draw(st.text(st.sampled_from("the dog \u6f22\U0001f600\u00e9"), min_size=1))
    ids = tokenizer.encode(text, add_special_tokens=False)
    cut = data.draw(st.integers(1, len(ids)))

    detokenizer = IncrementalDetokenizer(tokenizer, ids[max(0, cut - 5) : cut])
    output = "".join(detokenizer.push([i]) for i in ids[cut:]) + detokenizer.finish()

    whole, before = tokenizer.decode(ids), tokenizer.decode(ids[:cut])
    # A character that the prompt began appears whole in the output.
    assert whole == before.rstrip("\ufffd") + output


STOPS = st.lists(st.text(st.sampled_from("ab."), min_size=1, max_size=4), max_size=3)
PATTERNS = st.lists(
    st.sampled_from(["ab+", "a.b", r"b\.|ba", "a(?=b)", "(?<=a)b", "a+b"]), max_size=2
)


@settings(max_examples=500, deadline=None)
@given(
    text=st.text(st.sampled_from("ab.\U0001f600"), max_size=25),
    stops=STOPS,
    patterns=PATTERNS,
    no_stop_trim=st.booleans(),
    min_new_tokens=st.integers(0, 12),
    cuts=CUTS,
)
def test_emitted_text_is_the_final_text_cut_at_the_stop(
    text: str,
    stops: list[str],
    patterns: list[str],
    no_stop_trim: bool,
    min_new_tokens: int,
    cuts: list[int],
) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    ids = [tokenizer.encode(char) for char in text]
    flat = [i for char_ids in ids for i in char_ids]
    params = SamplingParams(
        stop=tuple(stops), stop_regex=tuple(patterns), no_stop_trim=no_stop_trim
    )
    checker = StopChecker(tokenizer, params)
    finish, used = FinishReason(type="length"), len(flat)
    for position, token_id in enumerate(flat):
        match = checker.push(token_id, may_stop=position + 1 >= min_new_tokens)
        if match is not None:
            end = match.end if no_stop_trim else match.begin
            finish = FinishReason(type="stop", matched=match.matched, text_end=end)
            used = position + 1
            break
    assembler = TextAssembler(
        tokenizer,
        DecodeOptions(stop=params.stop, stop_regex=params.stop_regex, no_stop_trim=no_stop_trim),
    )

    chunks = split(flat[:used], cuts) or [[]]
    emitted = [assembler.push(chunk) for chunk in chunks[:-1]]
    emitted.append(assembler.push(chunks[-1], finish))

    expected = tokenizer.decode(flat[:used])
    if finish.text_end is not None:
        expected = expected[: finish.text_end]
    assert "".join(emitted) == expected
    if finish.type == "length" and not patterns and min_new_tokens == 0:
        assert not any(stop in text for stop in stops)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("ab"), max_size=20), stops=STOPS)
def test_the_first_stop_to_be_complete_ends_the_text(text: str, stops: list[str]) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    checker = StopChecker(tokenizer, SamplingParams(stop=tuple(stops)))
    ids = [tokenizer.encode(char)[0] for char in text]

    found = next((match for i in ids if (match := checker.push(i, True)) is not None), None)

    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    if not ends:
        assert found is None
        return
    begin = min(ends[0] - len(stop) for stop in stops if text[: ends[0]].endswith(stop))
    assert found is not None
    assert (found.begin, found.end) == (begin, ends[0])
