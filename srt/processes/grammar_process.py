"""The grammar worker: checks, rewrites and compiles grammars until it is told to stop, or killed.

Started by child.main with the first grammar that a client sends. A grammar that takes too much
time or memory costs this process only: it is ended by a signal when the time is used up, which no
library can hold back.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.prepare_xgrammar import prepare_for_xgrammar
from runtime.grammars.prepared import PreparedGrammar
from runtime.grammars.spec import GrammarSpec
from runtime.grammars.vocabulary import Vocabulary

from ..loading.model_config import ModelConfig
from ..messages import CheckGrammar, GrammarChecked, Ready, Stop, ToGrammarWorker
from ..tokenization.grammar_vocabulary import grammar_vocabulary
from ..tokenization.tokenizer import Tokenizer
from .channels import HOST, Inbox, Outbox, address
from .child import ChildSpec, settle_memory

MAX_MEMORY_BYTES = 4 * 2**30  # of address space: what a grammar may take, and the libraries
_NICENESS = 10  # requests being served go first
_WAIT_SECONDS = 60.0


def run(spec: ChildSpec) -> None:
    """Load the vocabulary, report ready, then check grammars until told to stop."""
    os.nice(_NICENESS)
    directory = Path(spec.ipc_directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox = Inbox(context, address(directory, spec.inbox), msgspec.msgpack.Decoder(ToGrammarWorker))
    to_host = Outbox(context, address(directory, HOST))
    model = ModelConfig.load(Path(spec.folder), spec.args.model_overrides)
    tokenizer = Tokenizer.load(Path(spec.tokenizer_folder))
    vocabulary = grammar_vocabulary(tokenizer, model.vocab_size, model.eos_token_ids)
    settle_memory()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    to_host.send(Ready(process="grammars"))
    prepare_spec = prepare_for_xgrammar if spec.args.grammar_backend == "xgrammar" else prepare
    serve(
        lambda grammar: _checked(prepare_spec, grammar, vocabulary),
        inbox,
        to_host,
        spec.args.grammar_timeout_seconds,
    )
    inbox.close()
    to_host.close()
    context.term()


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
    """Return what spec becomes, having seen it compile."""
    prepared = prepare_spec(spec)
    compile_grammar(prepared, vocabulary)
    return prepared
