"""Sets of objects: one case of what the object keywords allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..matcher import GrammarError
from .formulas import ALWAYS, NEVER, Formula, conjunction, implies, negation
from .regex_ast import ALL, Nothing, Regex, Words, alt, both, inverse
from .regex_match import matches

MAX_NAMED_KEYS = 200  # additional keys of a finite set become properties up to this number
_ANY_REST: tuple[tuple[Regex, Formula], ...] = ((ALL, ALWAYS),)


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects whose properties are as given, in the order in which they are written.

    properties: the names that are spoken of, in order of output. rest: what other keys may hold,
    by disjoint sets of keys; a key in none of them is not allowed. some: for each, at least one
    key outside `properties` is in the set and its value satisfies the formula. seen_names and
    seen_keys: keys that count as evaluated; used only under unevaluatedProperties.
    """

    properties: tuple[tuple[str, Formula], ...] = ()
    required: frozenset[str] = frozenset()
    rest: tuple[tuple[Regex, Formula], ...] = _ANY_REST
    low: int = 0
    high: int | None = None
    some: tuple[tuple[Regex, Formula], ...] = ()
    seen_names: frozenset[str] = frozenset()
    seen_keys: tuple[Regex, ...] = ()

    def of_other(self, name: str) -> Formula:
        """What a key that is not among the properties has to satisfy."""
        if self.rest == _ANY_REST:
            return ALWAYS
        for keys, formula in self.rest:
            if matches(keys, name):
                return formula
        return NEVER


ANY_OBJECT = Objects()


def simplified(objects: Objects) -> Objects | None:
    """The same set in its plainest form; None if it is plainly empty."""
    rest: dict[Formula, list[Regex]] = {}
    for keys, formula in objects.rest:
        if formula != NEVER and not isinstance(keys, Nothing):
            rest.setdefault(formula, []).append(keys)
    merged = tuple((alt(keys), formula) for formula, keys in rest.items())
    properties = dict(objects.properties)
    finite = [(keys, formula) for keys, formula in merged if isinstance(keys, Words)]
    for keys, formula in finite:
        assert isinstance(keys, Words)
        if len(keys.words) <= MAX_NAMED_KEYS and not objects.some:
            properties.update((w, formula) for w in keys.words if w not in properties)
            merged = tuple(entry for entry in merged if entry[0] != keys)
    if any(properties[name] == NEVER for name in objects.required):
        return None
    possible = [name for name, formula in properties.items() if formula != NEVER]
    if objects.high is not None and max(len(objects.required), objects.low) > objects.high:
        return None
    if not merged and objects.low > len(possible):
        return None
    for keys, wanted in objects.some:
        if all(
            conjunction((formula, wanted)) == NEVER or isinstance(both((keys, others)), Nothing)
            for others, formula in merged
        ):
            return None
    return replace(objects, properties=tuple(properties.items()), rest=merged)


def meet(left: Objects, right: Objects) -> list[Objects]:
    """The objects in both, as cases; none if there are plainly none."""
    names = dict.fromkeys([name for name, _ in (*left.properties, *right.properties)])
    lefts, rights = with_names(left, names), with_names(right, names)
    found = []
    for a in lefts:
        for b in rights:
            properties, others = dict(a.properties), dict(b.properties)
            highs = [high for high in (a.high, b.high) if high is not None]
            found.append(
                Objects(
                    tuple((n, conjunction((properties[n], others[n]))) for n in names),
                    a.required | b.required,
                    _product(a.rest, b.rest),
                    max(a.low, b.low),
                    min(highs) if highs else None,
                    tuple(dict.fromkeys(a.some + b.some)),
                    a.seen_names | b.seen_names,
                    tuple(dict.fromkeys(a.seen_keys + b.seen_keys)),
                )
            )
    return [case for case in map(simplified, found) if case is not None]


def covers(general: Objects, special: Objects) -> bool:
    """Whether the general case plainly includes the special one. "No" may also mean: not plain."""
    if not (
        general.required <= special.required
        and general.low <= special.low
        and (general.high is None or (special.high is not None and special.high <= general.high))
        and set(general.some) <= set(special.some)
        and general.rest in (_ANY_REST, special.rest)
        and general.seen_names == special.seen_names
        and general.seen_keys == special.seen_keys
    ):
        return False
    known = dict(special.properties)
    named = dict(general.properties)
    if general.some and not named.keys() <= known.keys():
        return False  # the key that special has may be one that general has a name for
    if any(not implies(known.get(n) or special.of_other(n), f) for n, f in named.items()):
        return False
    return general.rest == _ANY_REST or all(
        name in named or implies(formula, general.of_other(name))
        for name, formula in special.properties
    )


def with_names(objects: Objects, names: Collection[str]) -> list[Objects]:
    """The same set with all names among the properties: cases, if `some` may be met by one."""
    known = dict(objects.properties)
    if len(known) == len(names) and list(known) == list(names):
        return [objects]
    properties = {name: known.get(name) for name in names}
    new = [name for name, formula in properties.items() if formula is None]
    for name in new:
        properties[name] = objects.of_other(name)
    for name, formula in known.items():
        properties.setdefault(name, formula)
    cases = [replace(objects, properties=tuple((n, f or NEVER) for n, f in properties.items()))]
    for entry in objects.some:
        keys, wanted = entry
        for name in new:
            if matches(keys, name):
                for case in list(cases):
                    if entry in case.some:
                        narrowed = dict(case.properties)
                        narrowed[name] = conjunction((narrowed[name], wanted))
                        cases.append(
                            replace(
                                case,
                                properties=tuple(narrowed.items()),
                                required=case.required | {name},
                                some=tuple(other for other in case.some if other != entry),
                            )
                        )
    return cases


def _product(
    left: tuple[tuple[Regex, Formula], ...], right: tuple[tuple[Regex, Formula], ...]
) -> tuple[tuple[Regex, Formula], ...]:
    if left == _ANY_REST or right == _ANY_REST:
        return right if left == _ANY_REST else left
    return tuple(
        (both((keys, others)), conjunction((formula, other)))
        for keys, formula in left
        for others, other in right
    )


def partition(
    patterns: Iterable[tuple[Regex, Formula]], default: Formula
) -> tuple[tuple[Regex, Formula], ...]:
    """Disjoint sets of keys from patterns that may overlap; default holds for all other keys."""
    parts: list[tuple[Regex, tuple[Formula, ...]]] = [(ALL, ())]
    for keys, formula in patterns:
        split = []
        for known, formulas in parts:
            split.append((both((known, keys)), (*formulas, formula)))
            split.append((both((known, inverse(keys))), formulas))
        parts = [part for part in split if not isinstance(part[0], Nothing)]
        if len(parts) > 32:
            raise GrammarError("too many overlapping patternProperties")
    return tuple(
        (known, conjunction(formulas) if formulas else default) for known, formulas in parts
    )


def complement(objects: Objects) -> list[Objects]:
    """All other objects, as cases."""
    cases = []
    for name in sorted(objects.required):
        cases.append(Objects(properties=((name, NEVER),)))
    for name, formula in objects.properties:
        if formula != ALWAYS:
            cases.append(
                Objects(properties=((name, negation(formula)),), required=frozenset((name,)))
            )
    if objects.low > 0:
        cases.append(Objects(high=objects.low - 1))
    if objects.high is not None:
        cases.append(Objects(low=objects.high + 1))
    # The named properties have cases of their own above; here they may hold anything.
    free = tuple((name, ALWAYS) for name, _ in objects.properties)
    outside = inverse(alt(keys for keys, _ in objects.rest))
    wrong = [(keys, negation(formula)) for keys, formula in objects.rest if formula != ALWAYS]
    if not isinstance(outside, Nothing):
        wrong.append((outside, ALWAYS))
    cases.extend(Objects(properties=free, some=(entry,)) for entry in wrong)
    for keys, formula in objects.some:
        none = ((keys, negation(formula)), (inverse(keys), ALWAYS))
        cases.append(Objects(properties=free, rest=none))
    return [case for case in map(simplified, cases) if case is not None]


def unseen(objects: Objects, wanted: Formula) -> Objects | None:
    """Objects in the set whose keys outside the seen ones satisfy wanted."""
    seen = alt(objects.seen_keys)
    properties = tuple(
        (
            name,
            formula
            if name in objects.seen_names or matches(seen, name)
            else conjunction((formula, wanted)),
        )
        for name, formula in objects.properties
    )
    rest = _product(objects.rest, ((seen, ALWAYS), (inverse(seen), wanted)))
    return simplified(
        replace(
            objects,
            properties=properties,
            rest=rest,
            seen_names=frozenset(),
            seen_keys=(ALL,),
        )
    )
