"""The grammar workers: check, rewrite and try out grammars, one worker after the other.

Started by child.main with the first grammar that a client sends. What checking takes is loaded
once, by a process that then does nothing but fork: a worker, and another when that one has ended. A
grammar that takes too much time or memory costs a worker only, which is ended by a signal when the
time is used up, which no library can hold back. The next one is there within milliseconds, as it
shares all that was loaded.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

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
from .channels import HOST, Inbox, Outbox, address, worker_inbox
from .child import ChildSpec, settle_memory, stay_with_parent

logger = logging.getLogger(__name__)

MAX_GRAMMAR_BYTES = 3 * 2**30  # of address space: what a grammar may take beside the libraries
# Less than any thread has by default, those of the scheduler among them: a grammar that leads an
# engine into too deep a recursion ends this process, never that one.
STACK_BYTES = 4 * 2**20
_HAS_STATM = sys.platform == "linux"  # elsewhere the libraries count as a grammar's
_WAIT_SECONDS = 60.0
# Requests being served go first. Loading does not wait behind them: a request waits for it.
_NICENESS = 10
_MIN_LIFE_SECONDS = 0.1  # of a worker; after a shorter one there is a pause
_PAUSE_SECONDS = 0.5


def run(spec: ChildSpec) -> None:
    """Load the vocabulary, then fork workers for ever.

    Each end of one is told on stdout, by a line with its exit code. SIGUSR1 kills the present one.
    """
    model = ModelConfig.load(Path(spec.folder), spec.args.model_overrides)
    tokenizer = Tokenizer.load(Path(spec.tokenizer_folder))
    vocabulary = grammar_vocabulary(tokenizer, model.vocab_size, model.eos_token_ids)
    is_xgrammar = spec.args.grammar_backend == "xgrammar"
    prepare_spec = prepare_for_xgrammar if is_xgrammar else prepare
    # The engine's import and its table of the vocabulary are not the first grammar's to pay for.
    engine_for(GrammarEngine.XGRAMMAR if is_xgrammar else GrammarEngine.LLGUIDANCE, vocabulary)
    closing_choices(vocabulary)
    settle_memory()

    def check(grammar: GrammarSpec) -> PreparedGrammar:
        return _checked(prepare_spec, grammar, vocabulary)

    _fork_workers(lambda number: _work(spec, check, worker_inbox(spec.inbox, number)))


def _fork_workers(work: Callable[[int], None]) -> NoReturn:
    """Run work(number) in a child process, again and again."""
    ends = _own_stdout()
    forker, worker = os.getpid(), 0

    def kill_worker(signal_number: int, frame: object) -> None:
        if worker:
            os.kill(worker, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, kill_worker)
    number = 0
    while True:
        number += 1
        started = time.monotonic()
        worker = os.fork()
        if worker == 0:
            ends.close()
            _run_worker(forker, partial(work, number))
        _, status = os.waitpid(worker, 0)
        worker = 0
        ends.write(b"%d\n" % os.waitstatus_to_exitcode(status))
        if time.monotonic() - started < _MIN_LIFE_SECONDS:
            time.sleep(_PAUSE_SECONDS)  # one that cannot live would be forked without end


def _own_stdout() -> BinaryIO:
    """What stdout leads to; what libraries print goes to stderr from now on."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return open(kept, "wb", buffering=0)


def _run_worker(forker: int, work: Callable[[], None]) -> NoReturn:
    exit_code = 1
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        stay_with_parent(forker, "grammars")
        os.nice(_NICENESS)
        _limit_memory()
        work()
        exit_code = 0
    except Exception:
        logger.exception("a grammar worker ends after an unexpected error")
    finally:
        os._exit(exit_code)  # the forker's own end is not this process's to run


def _work(
    spec: ChildSpec, check: Callable[[GrammarSpec], PreparedGrammar], inbox_name: str
) -> None:
    """Report ready, then check grammars until told to stop, or killed."""
    directory = Path(spec.ipc_directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox = Inbox(context, address(directory, inbox_name), msgspec.msgpack.Decoder(ToGrammarWorker))
    to_host = Outbox(context, address(directory, HOST))
    to_host.send(Ready(process="grammars", inbox=inbox_name))
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
