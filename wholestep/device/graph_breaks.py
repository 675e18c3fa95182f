"""Where `torch.compile` could not go on recording: each place is said once, and counted.

Dynamo logs every break, if asked to; nothing else tells of all of them. A break inside a loop skips the whole function,
which then runs eagerly, and no backend is ever called for it.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path

from torch._dynamo import symbolic_convert

_LOG = logging.getLogger("wholestep")
_BREAK = re.compile(r"in user code at (?P<file>.+):(?P<line>\d+)\nGraph Break Reason: (?P<reason>.+)", re.DOTALL)
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_found: Counter[str] = Counter()


def graph_breaks() -> dict[str, int]:
    """The breaks so far in what was compiled by the backend `wholestep`: `model.py:12: reason` -> how often a graph
    was cut there; functions that run eagerly altogether say so in the reason."""
    return dict(_found)


def report_graph_breaks(backend: str) -> None:
    """From now on report the breaks in what is compiled by the backend of this name."""
    logger = symbolic_convert.graph_break_log
    if not logger.isEnabledFor(logging.DEBUG):  # as it is where TORCH_LOGS asks for them
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    if not any(isinstance(handler, _Reporter) for handler in logger.handlers):
        logger.addHandler(_Reporter(backend))


class _Reporter(logging.Handler):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self._backend = backend

    def emit(self, record: logging.LogRecord) -> None:
        compiler = symbolic_convert.InstructionTranslator.current_tx().output.compiler_fn
        message = _BREAK.search(record.getMessage())
        if message is None or getattr(compiler, "__name__", None) != self._backend:
            return
        explanation = _EXPLANATION.search(message["reason"])
        reason = explanation[1] if explanation else message["reason"].splitlines()[0]
        if "falling back to eager" in message["reason"]:
            reason = f"{reason.rstrip('.')}; the whole function runs eagerly"
        text = f"{Path(message['file']).name}:{message['line']}: {reason}"
        if text not in _found:
            _LOG.warning("torch.compile ends a graph at %s:%s: %s", message["file"], message["line"], reason)
        _found[text] += 1
