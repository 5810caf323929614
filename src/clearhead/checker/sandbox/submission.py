r"""A submission, controlled from outside: build it, load weights, run it, differentiate it.

`Isolated` runs a file in a separate process; `InProcess` asks a class or module in this process the
same questions. All judging happens in this process. Nothing that comes back is unpickled: an answer
is JSON and safetensors bytes over a pipe, bounded in size, and validated field by field. The code
under test can forge an answer, so it counts as values to compare, never as a verdict.

>>> source = "class Double:\n    def forward(self, x): return 2 * x"
>>> with Isolated(source, "double.py") as submission:
...     built = submission.build("Double", [], {})
...     submission.forward([torch.tensor([1.0, 2.0])]).tensors
(tensor([2., 4.]),)
"""

import copy
import inspect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from clearhead.checker.sandbox.answers import (
    Built,
    ClassInfo,
    Failure,
    Gradients,
    Output,
    Parameter,
    Recording,
    clean,
    read_blob,
    read_built,
    read_classes,
    read_failure,
    read_gradients,
    read_header,
    read_output,
    read_recording,
    read_start,
)
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.process import START_SECONDS, Process, choose_way, contained_by
from clearhead.checker.sandbox.worker import Header, Known, Tensors, Worker, pack, plain_tensor

__all__ = [
    "Built",
    "ClassInfo",
    "Failure",
    "Gradients",
    "InProcess",
    "Isolated",
    "Output",
    "Parameter",
    "Recording",
    "Submission",
]

RESTARTS = 3
PATIENCE = 5.0  # seconds for a question if one pass takes almost no time
NOTHING: Mapping[str, Any] = {}
LIMITS = Limits()
Answer = TypeVar("Answer")


class Arguments:
    """Outgoing arguments: JSON and, separately, the tensors. The same tensor is sent once."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._names: dict[int, str] = {}
        self._held: list[Tensor] = []  # an id is unique only while its object lives

    def encode(self, value: object) -> Any:
        """The JSON for one argument."""
        if isinstance(value, Tensor):
            if value.is_complex():  # safetensors has no complex numbers
                return {"__complex__": self.name_of(torch.view_as_real(value))}
            return {"__tensor__": self.name_of(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Mapping):
            return {str(name): self.encode(item) for name, item in value.items()}
        if isinstance(value, Sequence):
            return [self.encode(item) for item in value]
        raise ValueError(
            f"argument: expected a tensor or a JSON value, got {type(value).__name__}.\n"
            '  A configuration object? Send {"__config__": {..}}.'
        )

    def name_of(self, tensor: Tensor) -> str:
        """The name under which a tensor is sent."""
        name = self._names.setdefault(id(tensor), f"t{len(self._names)}")
        if name not in self.tensors:
            plain = plain_tensor(tensor)
            if plain is None:
                raise ValueError(f"a tensor of dtype {tensor.dtype} cannot be sent")
            self.tensors[name] = plain
            self._held.append(tensor)
        return name


def _is_sent(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.is_complex()


def _in_words(question: str, fields: Header, tensors: Tensors) -> str:
    """What a question asks for, in words.

    Examples:
        >>> _in_words("forward", {"train": True}, {"t0": torch.zeros(2, 7, 15)})
        'a forward pass in training on an input of shape (2, 7, 15)'
    """
    passes = {"forward": "a forward pass", "backward": "a backward pass"}
    passes["record"] = "a recorded forward pass"
    if question not in passes:
        return f"the answer to {question!r}"
    mode = " in training" if fields.get("train") else ""
    shape = next((f" on an input of shape {tuple(t.shape)}" for t in tensors.values()), "")
    return f"{passes[question]}{mode}{shape}"


class Unanswered(NamedTuple):
    """A question that got no answer: what was asked, in words, and the line that was running."""

    asked: str
    line: int | None


class Submission(ABC):
    """What can be asked of a submission, wherever it runs. Every question can return a Failure."""

    contained: str
    notes: tuple[str, ...] = ()  # on what was left out when the file ran
    missing: tuple[str, ...] = ()  # names that the file imports from missing modules
    constants: Mapping[str, object] = NOTHING  # values for such names, from the next build on
    switches: Mapping[str, bool] = NOTHING  # attributes to override when it is built
    applies: tuple[str, bool] | None = None  # see `Worker.applied`

    def __init__(self) -> None:
        self.unanswered: list[Unanswered] = []

    def set_pace(self, seconds: float) -> None:
        """Set how long one forward pass takes; a question that takes far longer is abandoned."""
        return

    @contextmanager
    def optional(self) -> Iterator[list[Unanswered]]:
        """For questions that need no answer; the list ends up with those that got none."""
        before, found = len(self.unanswered), list[Unanswered]()
        yield found
        found += self.unanswered[before:]
        del self.unanswered[before:]

    @abstractmethod
    def _ask(
        self, question: str, fields: Header, tensors: Tensors
    ) -> tuple[Header, Tensors] | Failure:
        """Ask one question; the header and the tensors of the answer are not validated yet."""

    def _forged(self, error: Exception) -> Failure:
        """Handle an answer that could not be read."""
        return Failure("protocol", type(error).__name__, clean(str(error)))

    def _get(
        self,
        question: str,
        fields: Header,
        tensors: Tensors,
        read: Callable[[Header, Tensors], Answer],
    ) -> Answer | Failure:
        got = self._ask(question, fields, tensors)
        answer: Answer | Failure
        if isinstance(got, Failure):
            answer = got
        else:
            try:
                answer = read(*got)
            except Exception as error:
                answer = self._forged(error)
        if isinstance(answer, Failure) and not answer.raised:
            asked = _in_words(question, fields, tensors)
            self.unanswered.append(Unanswered(asked, answer.line))
        return answer

    def classes(self) -> tuple[ClassInfo, ...] | Failure:
        """The classes that are defined in the file, from top to bottom."""
        return self._get("classes", {}, {}, read_classes)

    def build(
        self, name: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> Built | Failure:
        """Build an object; later questions are about it.

        Args:
            name: The class.
            arguments: Tensors or JSON values; {"__config__": {..}} becomes an object that supports
                attribute, item, `.get` and `**` access.
            keywords: The same, by name.
        """
        sent = Arguments()
        fields = {
            "name": name,
            "arguments": sent.encode(list(arguments)),
            "keywords": sent.encode(keywords),
            "constants": sent.encode(self.constants),
            "switches": dict(self.switches),
        }
        return self._get("build", fields, sent.tensors, read_built)

    def demonstrate(self, body: str) -> Built | Failure:
        """Run the file's own demonstration; later questions are about the first module it calls.

        Args:
            body: The code under `if __name__ == "__main__":`.
        """
        return self._get("demonstrate", {"body": body}, {}, read_built)

    def describe(self) -> Built | Failure:
        """The object in its current state: some layers are created in the first forward pass."""
        return self._get("describe", {}, {}, read_built)

    def load(self, weights: Mapping[str, Tensor]) -> Failure | None:
        """Set parameters (or stray tensors) by name, and cast the module to their dtype."""
        tensors = {name: plain_tensor(value) for name, value in weights.items()}
        fine = {name: value for name, value in tensors.items() if value is not None}
        return self._get("load", {}, fine, lambda header, found: None)

    def _pass(
        self, inputs: Sequence[object], keywords: Mapping[str, object], train: bool, seed: int
    ) -> tuple[Arguments, Header]:
        """A request for a forward pass: its tensors, and the rest of the question."""
        sent = Arguments()
        given = {"inputs": sent.encode(list(inputs)), "keywords": sent.encode(keywords)}
        return sent, given | {"train": train, "seed": seed, "applies": self.applies}

    def forward(
        self,
        inputs: Sequence[object],
        keywords: Mapping[str, object] = NOTHING,
        *,
        train: bool = False,
        seed: int = 0,
    ) -> Output | Failure:
        """Run it once, without gradients, after `torch.manual_seed(seed)`."""
        sent, fields = self._pass(inputs, keywords, train, seed)

        def read(header: Header, tensors: Tensors) -> Output:
            found = read_output(header, tensors)
            given: list[tuple[int | str, object]] = [*enumerate(inputs), *keywords.items()]
            named = [(p, sent.name_of(t)) for p, t in given if _is_sent(t)]
            places = tuple(place for place, name in named if name in found.changed)
            return replace(found, changed=places)

        return self._get("forward", fields, sent.tensors, read)

    def record(
        self,
        inputs: Sequence[object],
        keywords: Mapping[str, object] = NOTHING,
        *,
        train: bool = False,
        seed: int = 0,
    ) -> tuple[Recording, dict[str, Tensor]] | Failure:
        """Run it once and record every torch call; also return the inputs by their names there."""
        sent, fields = self._pass(inputs, keywords, train, seed)
        got = self._get("record", fields, sent.tensors, read_recording)
        return got if isinstance(got, Failure) else (got, sent.tensors)

    def backward(
        self,
        inputs: Sequence[object],
        keywords: Mapping[str, object] = NOTHING,
        *,
        cotangent: Tensor,
        train: bool = False,
        seed: int = 0,
    ) -> Gradients | Failure:
        """Run it once and differentiate sum(first output tensor * cotangent)."""
        sent, fields = self._pass(inputs, keywords, train, seed)
        names = [sent.name_of(one) if _is_sent(one) else None for one in inputs]
        plain = plain_tensor(cotangent)
        if plain is None:
            raise ValueError(f"cotangent: a tensor of dtype {cotangent.dtype} cannot be sent")
        given = dict(sent.tensors)

        def read(header: Header, tensors: Tensors) -> Gradients:
            return read_gradients(header, tensors, names, given)

        return self._get("backward", fields, sent.tensors | {"cotangent": plain}, read)

    def own_backward(
        self, inputs: Sequence[object], keywords: Mapping[str, object], cotangent: Tensor
    ) -> Output | Failure:
        """Run it once; what its own method `backward` then returns for this gradient."""
        sent, fields = self._pass(inputs, keywords, train=False, seed=0)
        tensors = sent.tensors | {"cotangent": cotangent}
        return self._get("own_backward", fields, tensors, read_output)

    def close(self) -> None:
        """Release all resources."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Isolated(Submission):
    """A submission in a separate process.

    When the process is gone (a Failure of kind "timeout", "memory", "died" or "protocol"), the next
    question starts another one, imports the file, builds and loads as before, and then asks. After
    three restarts, the last Failure is returned again. If the file cannot be imported, every
    question returns that Failure.

    Args:
        source: The Python source.
        filename: Its name, for tracebacks; the folder is not revealed to the submission.
        limits: What it may use.
        way: The strongest way to try: "bwrap", "unshare" or "plain".
        siblings: Modules next to the file: their source by dotted name.
    """

    def __init__(
        self,
        source: str,
        filename: str,
        *,
        limits: Limits = LIMITS,
        way: str = "bwrap",
        siblings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._start = {
            "source": source,
            "filename": Path(filename).name,
            "siblings": dict(siblings or {}),
        }
        self._limits = limits
        self._patience = limits.seconds
        self._way = choose_way("trusted" if limits.trusted else way)
        self.contained = contained_by(self._way)
        self._asked, self._spent, self._restarts = 0, 0.0, 0
        self._imported = False
        self._broken: Failure | None = None  # the answer to every further question
        self._last: Failure | None = None
        self._replay: dict[str, tuple[Header, Tensors]] = {}
        self._process: Process | None = Process(limits, self._way)

    def set_pace(self, seconds: float) -> None:
        """Wait for a pass up to a hundred times as long as one takes, but at least some seconds."""
        self._patience = min(self._limits.seconds, max(PATIENCE, 100 * seconds))

    def close(self) -> None:
        """End the process and everything that it started."""
        if self._process is not None:
            self._process.close()
            self._process = None
        self._broken = self._broken or Failure("died", message="closed")

    def _stop(self, failure: Failure) -> Failure:
        """Discard the process after a failure."""
        assert self._process is not None
        self._process.close()
        self._process, self._imported, self._last = None, False, failure
        return failure

    def _forged(self, error: Exception) -> Failure:
        return self._stop(super()._forged(error))

    def _ask(
        self, question: str, fields: Header, tensors: Tensors
    ) -> tuple[Header, Tensors] | Failure:
        failure = self._prepare()
        if failure is not None:
            return failure
        got = self._exchange(question, fields, tensors)
        if question == "build":
            self._replay = {}
        if question in ("build", "load") and not isinstance(got, Failure):
            self._replay[question] = (fields, tensors)
        return got

    def _prepare(self) -> Failure | None:
        """Make sure that there is a process that has imported the file."""
        if self._broken is not None:
            return self._broken
        if self._process is None:
            if self._restarts == RESTARTS:
                return self._last
            self._restarts += 1
            self._process = Process(self._limits, self._way)
        if self._imported:
            return None
        hello = self._process.ask(b"", START_SECONDS)
        if isinstance(hello, Failure):
            reason = f"the process for checking could not start: {hello.message}"
            self._broken = self._stop(Failure("died", message=reason))
            return self._broken
        self._asked = 0
        got = self._exchange("start", self._start, {})
        if isinstance(got, Failure):
            self._broken = got
            return got
        try:
            self.notes, self.missing = read_start(got[0])
        except Exception as error:
            self._broken = self._forged(error)
            return self._broken
        self._imported = True
        for question, (fields, tensors) in self._replay.items():
            got = self._exchange(question, fields, tensors)
            if isinstance(got, Failure):
                return got
        return None

    def _exchange(
        self, question: str, fields: Header, tensors: Tensors
    ) -> tuple[Header, Tensors] | Failure:
        """Put one question to the running process, within the remaining time."""
        assert self._process is not None
        left = self._limits.total_seconds - self._spent
        self._asked += 1
        paced = question in ("forward", "backward", "record")
        own = self._patience if paced else self._limits.seconds
        seconds = min(own, left)
        soon = own - min(1.0, own / 10) if own < left else None  # time to report the line
        header = {"id": self._asked, "question": question, "seconds": soon, **fields}
        frame = pack(header, tensors)
        began = time.monotonic()
        got = self._process.ask(frame, seconds)
        self._spent += time.monotonic() - began
        if self._spent >= self._limits.total_seconds:
            total = f"all questions together took {self._limits.total_seconds:g} s"
            self._broken = self._stop(Failure("timeout", message=total))
            return self._broken
        if isinstance(got, Failure):
            return self._stop(got)
        try:
            header, found = read_header(got[0]), read_blob(got[1])
            if header["id"] != self._asked:
                raise ValueError("an answer to another question")
            if "failure" not in header:
                return header, found
            failure = read_failure(header["failure"])
        except Exception as error:
            return self._forged(error)
        return failure if failure.kind == "exception" else self._stop(failure)


class InProcess(Submission):
    """A class, or a module that is already built, in this process: trusted, not contained.

    A module is copied before it is used; `build` makes a fresh copy, whatever the arguments. The
    global random state is left unchanged.

    Args:
        subject: The class or the `nn.Module`.
    """

    contained = "Not contained: it runs in your own process."

    def __init__(self, subject: type | nn.Module) -> None:
        super().__init__()
        cls = subject if isinstance(subject, type) else type(subject)
        file, lines = "", (0, 0)
        try:
            file = inspect.getsourcefile(cls) or ""
            text, first = inspect.getsourcelines(cls)
            lines = (first, first + len(text) - 1)
        except (OSError, TypeError):
            lines = (0, 0)  # typed at a prompt: there is no file
        libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "<frozen")

        def own(name: str) -> bool:
            return name == file or not name.startswith(libraries)

        make = (
            subject if isinstance(subject, type) else lambda *_, **__: copy.deepcopy(subject).cpu()
        )
        self._worker = Worker(own, Exception)
        self._worker.known[cls.__name__] = Known(cls, lines, make)

    def _ask(
        self, question: str, fields: Header, tensors: Tensors
    ) -> tuple[Header, Tensors] | Failure:
        with torch.random.fork_rng(devices=[]):
            header, found = self._worker.answer(question, fields, dict(tensors))
        return read_failure(header["failure"]) if "failure" in header else (header, found)
