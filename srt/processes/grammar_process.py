"""The grammar worker: checks, rewrites and tries out grammars until it is told to stop, or killed.

Started by child.main with the first grammar that a client sends. A grammar that takes too much
time or memory costs this process only: it is ended by a signal when the time is used up, which no
library can hold back.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import zmq

from runtime.grammars.closing_choices import closing_choices
from runtime.grammars.compile import engine_for
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.prepare_xgrammar import prepare_for_xgrammar
from runtime.grammars.prepared import GrammarEngine, PreparedGrammar
from runtime.grammars.spec import GrammarSpec
from runtime.grammars.trial import try_out
from runtime.grammars.vocabulary import Vocabulary

from ..loading.model_config import ModelConfig
from ..messages import CheckGrammar, GrammarChecked, Ready, Stop, ToGrammarWorker
from ..tokenization.grammar_vocabulary import grammar_vocabulary
from ..tokenization.tokenizer import Tokenizer
from .channels import HOST, Inbox, Outbox, address
from .child import ChildSpec, settle_memory

MAX_GRAMMAR_BYTES = 3 * 2**30  # of address space: what a grammar may take beside the libraries
# Less than any thread has by default, those of the scheduler among them: a grammar that leads an
# engine into too deep a recursion ends this process, never that one.
STACK_BYTES = 4 * 2**20
_HAS_STATM = sys.platform == "linux"  # elsewhere the libraries count as a grammar's
_WAIT_SECONDS = 60.0


def run(spec: ChildSpec) -> None:
    """Load the vocabulary, report ready, then check grammars until told to stop."""
    directory = Path(spec.ipc_directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox = Inbox(context, address(directory, spec.inbox), msgspec.msgpack.Decoder(ToGrammarWorker))
    to_host = Outbox(context, address(directory, HOST))
    model = ModelConfig.load(Path(spec.folder), spec.args.model_overrides)
    tokenizer = Tokenizer.load(Path(spec.tokenizer_folder))
    vocabulary = grammar_vocabulary(tokenizer, model.vocab_size, model.eos_token_ids)
    is_xgrammar = spec.args.grammar_backend == "xgrammar"
    prepare_spec = prepare_for_xgrammar if is_xgrammar else prepare
    # The engine's import and its table of the vocabulary are not the first grammar's to pay for.
    engine_for(GrammarEngine.XGRAMMAR if is_xgrammar else GrammarEngine.LLGUIDANCE, vocabulary)
    closing_choices(vocabulary)
    settle_memory()
    _limit_memory()
    to_host.send(Ready(process="grammars"))

    def check(grammar: GrammarSpec) -> PreparedGrammar:
        return _checked(prepare_spec, grammar, vocabulary)

    threading.stack_size(STACK_BYTES)
    with ThreadPoolExecutor(1, "grammars") as thread:
        thread.submit(serve, check, inbox, to_host, spec.args.grammar_timeout_seconds).result()
    inbox.close()
    to_host.close()
    context.term()


def _limit_memory() -> None:
    num_pages = int(Path("/proc/self/statm").read_text().split()[0]) if _HAS_STATM else 0
    most = num_pages * resource.getpagesize() + MAX_GRAMMAR_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def serve(
    check: Callable[[GrammarSpec], PreparedGrammar],
    inbox: Inbox[ToGrammarWorker],
    to_host: Outbox,
    cpu_seconds: float,
) -> None:
    """Check one grammar after the other until a Stop arrives, or one takes cpu_seconds."""
    while True:
        inbox.wait(_WAIT_SECONDS)
        for message in inbox.drain():
            match message:
                case CheckGrammar():
                    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
                    answer = _answer(check, message)
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    to_host.send(answer)
                case Stop():
                    return


def _answer(
    check: Callable[[GrammarSpec], PreparedGrammar], message: CheckGrammar
) -> GrammarChecked:
    try:
        return GrammarChecked(message.call_id, check(message.spec))
    except GrammarError as error:
        return GrammarChecked(message.call_id, error=str(error))
    except (MemoryError, RecursionError):
        text = "the grammar is too large to be checked; simplify it"
        return GrammarChecked(message.call_id, error=text)


def _checked(
    prepare_spec: Callable[[GrammarSpec], PreparedGrammar],
    spec: GrammarSpec,
    vocabulary: Vocabulary,
) -> PreparedGrammar:
    """Return what spec becomes, tried out."""
    return try_out(prepare_spec(spec), vocabulary)
