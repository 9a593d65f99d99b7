"""EngineClient: how a front end (HTTP app, Engine) talks to the scheduler and the detokenizer.

Keeps the table of open requests and turns the stream of deltas into one iterator per request. Lives
on one event loop, in the process that also tokenises. Knows nothing of HTTP, and sockets only as
something to send with; whoever owns the sockets calls receive().
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from ..errors import BadRequest, EngineDied, Overloaded, ServingError
from ..loading.model_config import ModelConfig
from ..messages import (
    AbortRequest,
    FlushCache,
    FlushDone,
    GenerateRequest,
    GrammarChecked,
    GrammarSource,
    Ready,
    SchedulerReply,
    SchedulerState,
    StartFailed,
    StateQuery,
    TextBatch,
    TextDelta,
    ToHost,
    ToScheduler,
    UnpinDone,
    UnpinPrefix,
)
from ..server_args import ServerArgs
from ..tokenization.chat_template import ChatTemplate
from ..tokenization.tokenizer import Tokenizer
from .generation_spec import GenerationSpec
from .grammar_service import GrammarService
from .intake import Intake
from .mailbox import Mailbox

logger = logging.getLogger(__name__)

Status: TypeAlias = Literal["starting", "up", "draining", "dead"]

AtOnce: TypeAlias = Callable[[TextDelta], bool]  # see EngineClient.stream

_REPLY_GRACE_SECONDS = 5.0  # beyond the time that the scheduler itself was given


class Sender(Protocol):
    """Something that delivers messages to the scheduler, in order, without blocking."""

    def send(self, message: ToScheduler) -> None: ...


class RequestObserver(Protocol):
    """Sees every request from sending to end; used for metrics and request logs.

    Each on_sent is followed by deltas of which the last has progress.finish set (also when the
    client went away), or by on_lost if the engine died.
    """

    def on_sent(self, request: GenerateRequest) -> None: ...

    def on_delta(self, request: GenerateRequest, delta: TextDelta) -> None: ...

    def on_lost(self, request: GenerateRequest) -> None: ...


@dataclass(slots=True, eq=False)
class _OpenRequest:
    request: GenerateRequest
    at_once: AtOnce | None
    arrivals: Mailbox[TextDelta | Exception] = field(default_factory=Mailbox)


_ABORTED_IN_CHECK = BadRequest(
    "the request was aborted while its grammar was being checked", code="aborted"
)
_SHUTTING_DOWN = Overloaded("the server is shutting down, and the answer was not begun in time")


@dataclass(slots=True, eq=False)
class _InCheck:
    request: GenerateRequest
    check: asyncio.Future[GrammarSource]
    abort: ServingError | None = None  # what it ends with


class EngineClient:
    """The engine as a front end sees it.

    status is "starting" until its owner says "up"; "draining" takes no new requests but lets open
    ones finish; "dead" is final. facts are the scheduler's, from its ready message.
    """

    def __init__(
        self,
        args: ServerArgs,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        model_config: ModelConfig,
        facts: Ready,
        to_scheduler: Sender,
        grammars: GrammarService | None = None,
    ) -> None:
        self.args = args
        self.grammars = grammars
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.model_config = model_config
        self.facts = facts
        self.status: Status = "starting"
        self.observers: list[RequestObserver] = []
        self._to_scheduler = to_scheduler
        self._open: dict[str, _OpenRequest] = {}
        self._in_check: dict[str, _InCheck] = {}  # whose grammars are being checked, not yet sent
        self._closing: dict[str, GenerateRequest] = {}  # given up, their last delta not yet here
        self._calls: dict[int, asyncio.Future[SchedulerReply]] = {}
        self._call_ids = itertools.count(1)
        self._death: str | None = None
        self._intake = Intake(
            tokenizer,
            vocab_size=model_config.vocab_size,
            context_length=facts.context_length,
            max_total_tokens=facts.max_total_tokens,
            page_size=args.page_size,
            allow_auto_truncate=args.allow_auto_truncate,
            random_seed=args.random_seed,
            request_timeout_seconds=args.request_timeout_seconds,
            is_open=self.is_open,
        )

    @property
    def num_open_requests(self) -> int:
        """Requests sent and not yet finished or given up."""
        return len(self._open)

    def is_open(self, rid: str) -> bool:
        """Whether the request with this id is worked on, or has not yet been let go of."""
        return rid in self._open or rid in self._closing or rid in self._in_check

    async def prepare(self, spec: GenerationSpec) -> list[GenerateRequest]:
        """Tokenise and check spec; return its requests, one per sample, for stream().

        Raises BadRequest or ContextTooLong, Overloaded while draining, EngineDied when dead. What
        was prepared before draining began may still be streamed.
        """
        self._check_alive()
        if self.status == "draining":
            raise Overloaded("the server is shutting down; send new requests to another one")
        requests = await self._intake.prepare_async(spec)
        if spec.grammar is None:
            return requests
        assert self.grammars is not None, "this client was made without a grammar service"
        source = await self._checked(
            requests, self.grammars.check(spec.grammar, spec.grammar_field)
        )
        return [msgspec.structs.replace(request, grammar=source) for request in requests]

    async def stream(
        self, request: GenerateRequest, at_once: AtOnce | None = None
    ) -> AsyncIterator[TextDelta]:
        """Send request at the first step of the iteration; yield its deltas up to the finish.

        An iterator that is closed or cancelled before that aborts its request at once (use
        contextlib.aclosing). A finish of type abort is yielded like any other. Raises BadRequest if
        the rid is open, EngineDied when a process of the engine ends.

        A delta that comes while the iterator's reader waits for it, and is not the last, is given
        to at_once first: if that returns True it is dealt with and not yielded. This saves waking a
        task for each token. at_once must be quick; what it raises is raised by the iterator.
        """
        opened = self._send(request, at_once)
        try:
            finished = False
            while not finished:
                arrival = await opened.arrivals.take()
                if isinstance(arrival, Exception):
                    raise arrival
                finished = arrival.progress.finish is not None
                yield arrival
        finally:
            self._give_up(opened)

    async def abort(self, rid: str | None, *, is_shutdown: bool = False) -> bool:
        """Abort the request with exactly this id, all samples of it, or all requests (None).

        Returns whether there was any. Their streams end with a finish of type abort; prepare of
        those whose grammar is still being checked raises BadRequest, or Overloaded if is_shutdown,
        which is as in AbortRequest.
        """
        self._check_alive()
        in_check = [one for one in self._in_check.values() if _belongs(one.request, rid)]
        for one in in_check:
            one.abort = _SHUTTING_DOWN if is_shutdown else _ABORTED_IN_CHECK
            one.check.cancel()
        if rid is None:
            found = list(self._open)
            self._to_scheduler.send(AbortRequest(None, is_shutdown))
        else:
            found = [key for key, one in self._open.items() if _belongs(one.request, rid)]
            for one_rid in found:
                self._to_scheduler.send(AbortRequest(one_rid))
        return bool(found or in_check)

    async def flush_cache(self, timeout_seconds: float) -> FlushDone:
        """Empty the prefix cache as soon as no request is open, waiting at most timeout_seconds."""
        call_id = next(self._call_ids)
        message = FlushCache(call_id, timeout_seconds)
        reply = await self._call(call_id, message, timeout_seconds + _REPLY_GRACE_SECONDS)
        assert isinstance(reply, FlushDone)
        return reply

    async def unpin_prefix(self, pin_id: str, timeout_seconds: float = 10.0) -> int | None:
        """End the pin with this id; return the tokens it held, None if there is none any more."""
        call_id = next(self._call_ids)
        reply = await self._call(call_id, UnpinPrefix(call_id, pin_id), timeout_seconds)
        assert isinstance(reply, UnpinDone)
        return reply.num_tokens

    async def state(self, timeout_seconds: float = 10.0) -> SchedulerState:
        """Return what the scheduler holds; raises Overloaded if it does not answer in time."""
        call_id = next(self._call_ids)
        reply = await self._call(call_id, StateQuery(call_id), timeout_seconds)
        assert isinstance(reply, SchedulerState)
        return reply

    async def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Wait until no request is open or in check; return whether that came in time."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while (self._open or self._in_check) and self.status != "dead":
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def receive(self, message: ToHost) -> None:
        """Take in one message from the scheduler or the detokenizer."""
        match message:
            case GrammarChecked():
                if self.grammars is not None:
                    self.grammars.receive(message)
            case TextBatch():
                for delta in message.deltas:
                    self._receive_delta(delta)
            case FlushDone() | UnpinDone() | SchedulerState():
                future = self._calls.pop(message.call_id, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case Ready() | StartFailed():
                raise AssertionError(f"unexpected start message after start: {message}")

    def mark_dead(self, reason: str) -> None:
        """End every open request and call with EngineDied(reason); take no more. Final."""
        if self.status == "dead":
            return
        self.status = "dead"
        self._death = reason
        for opened in self._open.values():
            opened.arrivals.put(EngineDied(reason))
            for observer in self.observers:
                observer.on_lost(opened.request)
        self._open.clear()
        self._closing.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDied(reason))
        self._calls.clear()
        self._intake.close()
        if self.grammars is not None:
            self.grammars.close(reason)

    async def _checked(
        self, requests: list[GenerateRequest], checking: Coroutine[Any, Any, GrammarSource]
    ) -> GrammarSource:
        """What checking gives; until then aborts find requests, and nobody else takes their rid."""
        check = asyncio.ensure_future(checking)
        found = [_InCheck(request, check) for request in requests]
        try:
            for one in found:
                self._check_not_open(one.request)
                self._in_check[one.request.rid] = one
            source = await check
            _raise_abort(found)  # one that came when the check had ended, and this had not gone on
            return source
        except asyncio.CancelledError:
            _raise_abort(found)
            raise
        finally:
            check.cancel()
            for one in found:
                if self._in_check.get(one.request.rid) is one:
                    del self._in_check[one.request.rid]

    def _check_not_open(self, request: GenerateRequest) -> None:
        if self.is_open(request.rid):
            raise BadRequest(
                f"a request with rid {request.rid!r} is still open; choose another or leave it out",
                param="rid",
            )

    def _send(self, request: GenerateRequest, at_once: AtOnce | None) -> _OpenRequest:
        self._check_alive()
        self._check_not_open(request)
        opened = _OpenRequest(request, at_once)
        self._to_scheduler.send(request)
        self._open[request.rid] = opened
        logger.debug("request %s: sent, %d prompt tokens", request.rid, len(request.input_ids))
        for observer in self.observers:
            observer.on_sent(request)
        return opened

    def _give_up(self, opened: _OpenRequest) -> None:
        """Abort a request whose iterator ends early; one that has finished is gone already."""
        rid = opened.request.rid
        if self._open.get(rid) is not opened:
            return
        del self._open[rid]
        self._closing[rid] = opened.request
        self._to_scheduler.send(AbortRequest(rid))
        logger.debug("request %s: client went away, aborting", rid)

    def _receive_delta(self, delta: TextDelta) -> None:
        rid = delta.progress.rid
        finished = delta.progress.finish is not None
        opened = self._open.get(rid)
        if opened is not None:
            request = opened.request
            if finished or not _taken_at_once(opened, delta):
                opened.arrivals.put(delta)
            if finished:
                del self._open[rid]
        elif rid in self._closing:
            request = self._closing[rid]
            if finished:
                del self._closing[rid]
        else:
            logger.warning("request %s: delta for a request that is not open", rid)
            return
        for observer in self.observers:
            observer.on_delta(request, delta)

    async def _call(
        self, call_id: int, message: FlushCache | UnpinPrefix | StateQuery, timeout_seconds: float
    ) -> SchedulerReply:
        self._check_alive()
        future: asyncio.Future[SchedulerReply]
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._to_scheduler.send(message)
        try:
            return await asyncio.wait_for(future, timeout_seconds)
        except TimeoutError:
            raise Overloaded(
                f"the scheduler did not answer within {timeout_seconds:g} s; try again"
            ) from None
        finally:
            self._calls.pop(call_id, None)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDied(self._death)


def _raise_abort(requests: list[_InCheck]) -> None:
    """Raise what an abort has left for one of requests, if any."""
    for one in requests:
        if (abort := one.abort) is not None:
            raise type(abort)(abort.message, param=abort.param, code=abort.code) from None


def _belongs(request: GenerateRequest, rid: str | None) -> bool:
    """Whether rid is that of request or of the body that it is a sample of; None: of all."""
    if rid is None or request.rid == rid:
        return True
    return request.sampling.n > 1 and request.rid.rpartition("-")[0] == rid


def _taken_at_once(opened: _OpenRequest, delta: TextDelta) -> bool:
    at_once = opened.at_once
    if at_once is None or not opened.arrivals.is_awaited:
        return False
    try:
        return at_once(delta)
    except Exception as error:  # it is the request's own: the other deltas of the step go on
        opened.arrivals.put(error)
        return True
