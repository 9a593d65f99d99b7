"""The detokenizer process: token deltas in, text deltas out.

Started by child.main. Holds one TextAssembler per running request and nothing else; imports no
torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from ..errors import GenerationFailed, ServingError
from ..messages import (
    AbortRequest,
    DecodeOptions,
    FinishReason,
    Progress,
    Ready,
    Stop,
    TextBatch,
    TextDelta,
    ToDetokenizer,
    TokenBatch,
    TokenDelta,
)
from ..tokenization.text_assembler import TextAssembler
from ..tokenization.tokenizer import Tokenizer
from .channels import DETOKENIZER, HOST, SCHEDULER, Inbox, Outbox, address
from .child import ChildSpec, settle_memory

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0


class Assembler(Protocol):
    """Turns one request's ids into text, piece by piece."""

    def push(self, token_ids: list[int], finish: FinishReason | None) -> str: ...


class Detokenizer:
    """The text state of all running requests.

    A request whose text cannot be made ends with an error of its own: abort is called with its id,
    and what the scheduler still sends of it is dropped.
    """

    def __init__(
        self, make_assembler: Callable[[DecodeOptions], Assembler], abort: Callable[[str], None]
    ) -> None:
        self._make_assembler = make_assembler
        self._abort = abort
        self._assemblers: dict[str, Assembler] = {}
        self._failed: set[str] = set()

    @property
    def num_requests(self) -> int:
        """Requests of which state is held."""
        return len(self._assemblers) + len(self._failed)

    def decode(self, deltas: list[TokenDelta]) -> list[TextDelta]:
        """Return the text of each delta, in order; a request's state goes with its finish."""
        texts: list[TextDelta] = []
        for delta in deltas:
            progress = delta.progress
            if progress.rid in self._failed:
                if progress.finish is not None:
                    self._failed.discard(progress.rid)
                continue
            texts.append(self._decode_one(delta))
            if progress.finish is not None:
                self._assemblers.pop(progress.rid, None)
        return texts

    def _decode_one(self, delta: TokenDelta) -> TextDelta:
        progress = delta.progress
        try:
            if delta.options is not None:
                self._assemblers[progress.rid] = self._make_assembler(delta.options)
            assembler = self._assemblers[progress.rid]
            return TextDelta(assembler.push(progress.token_ids, progress.finish), progress)
        except ServingError as error:
            logger.info("request %s: %s", progress.rid, error.message)
            return self._fail(progress, error)
        except Exception as error:
            # Whatever it is, it is this request's own: the others' text goes on.
            logger.exception("request %s: cannot turn its tokens into text", progress.rid)
            name = type(error).__name__
            return self._fail(
                progress, GenerationFailed(f"the output tokens could not be made text: {name}")
            )

    def _fail(self, progress: Progress, error: ServingError) -> TextDelta:
        if progress.finish is None:
            self._assemblers.pop(progress.rid, None)
            self._failed.add(progress.rid)
            self._abort(progress.rid)
        finish = FinishReason(
            type="abort",
            message=error.message,
            status_code=error.status_code,
            error_type=error.error_type,
        )
        return TextDelta("", msgspec.structs.replace(progress, finish=finish))


def run(spec: ChildSpec) -> None:
    """Load the tokenizer, report ready, then decode until told to stop."""
    directory = Path(spec.ipc_directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox = Inbox(context, address(directory, DETOKENIZER), msgspec.msgpack.Decoder(ToDetokenizer))
    to_host = Outbox(context, address(directory, HOST))
    to_scheduler = Outbox(context, address(directory, SCHEDULER))
    tokenizer = Tokenizer.load(Path(spec.tokenizer_folder))
    detokenizer = Detokenizer(
        lambda options: TextAssembler(tokenizer, options),
        lambda rid: to_scheduler.send(AbortRequest(rid)),
    )
    settle_memory()
    to_host.send(Ready(process="detokenizer"))
    serve(detokenizer, inbox, to_host)
    inbox.close()
    to_host.close()
    to_scheduler.close()
    context.term()


def serve(detokenizer: Detokenizer, inbox: Inbox[ToDetokenizer], to_host: Outbox) -> None:
    """Decode until a Stop arrives; what has arrived before it is decoded first."""
    while True:
        inbox.wait(_WAIT_SECONDS)
        for message in inbox.drain():
            match message:
                case TokenBatch():
                    if texts := detokenizer.decode(message.deltas):
                        to_host.send(TextBatch(texts))
                case Stop():
                    return
