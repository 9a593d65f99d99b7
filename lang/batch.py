"""Many runs of one program: bounded concurrency, results in order, a bar if asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Literal

from .body_threads import BodyThreads
from .errors import ProgramError
from .loop_thread import shared_loop, wait

ErrorPolicy = Literal["raise", "return"]
Item = dict[str, Any] | tuple[Any, ...]
Start = Callable[[Item, BodyThreads, bool], Coroutine[Any, Any, Any]]


def run_batch(
    start: Start,
    items: list[Item],
    concurrency: int,
    progress_bar: bool,
    on_error: ErrorPolicy,
) -> list[Any]:
    """Do run_batch_async on the shared loop and wait; ctrl-C ends all runs."""
    future = shared_loop().submit(
        run_batch_async(start, items, concurrency, progress_bar, on_error)
    )
    try:
        return wait(future)
    except BaseException:
        future.cancel()
        raise


async def run_batch_async(
    start: Start,
    items: list[Item],
    concurrency: int,
    progress_bar: bool,
    on_error: ErrorPolicy,
) -> list[Any]:
    """Call start with each item, the threads for plain functions, and whether it runs alone.

    Return what the calls return, or with on_error "return" their errors. Raises ProgramError for
    arguments that make no sense.
    """
    _check(items, concurrency, on_error)
    results: list[Any] = [None] * len(items)
    is_alone = min(len(items), concurrency) < 2
    left = iter(enumerate(items))
    with ExitStack() as stack:
        advance = _bar(stack, len(items)) if progress_bar else _nothing
        # Threads of its own: a program of this batch may run a batch itself and wait for it.
        threads = BodyThreads(concurrency)
        stack.callback(threads.close)

        async def work() -> None:
            for index, item in left:
                try:
                    results[index] = await start(item, threads, is_alone)
                except Exception as error:
                    if on_error == "raise":
                        error.add_note(f"in item {index} of the batch")
                        raise
                    results[index] = error
                advance()

        await _all(work() for _ in range(min(len(items), concurrency)))
    return results


async def _all(works: Any) -> None:
    """Run coroutines together; the first error cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(items: list[Item], concurrency: int, on_error: str) -> None:
    if concurrency < 1:
        raise ProgramError(f"concurrency is {concurrency}; it must be at least 1")
    if on_error not in ("raise", "return"):
        raise ProgramError(f"on_error is {on_error!r}; it must be 'raise' or 'return'")
    for index, item in enumerate(items):
        if not isinstance(item, dict | tuple):
            raise ProgramError(
                f"item {index} of the batch is of type {type(item).__name__}; it must be a dict of "
                "arguments by name, or a tuple"
            )


def _bar(stack: ExitStack, total: int) -> Callable[[], object]:
    # Late: most runs show no bar. It ships no types.
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar = stack.enter_context(tqdm(total=total))
    return lambda: bar.update()


def _nothing() -> None:
    return None
