"""The one thread that makes tokens and writes weights, so that the two never overlap.

Every turn of its loop runs the commands that have arrived, then one forward pass: a prompt that
waits, or one token of every running sequence.  A command therefore takes effect between two
passes, and a token's version is the one that was in place for its whole pass.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from skerry.inference.engine import EngineBroken, EngineError, InstallFailed
from skerry.inference.engines.batch import Batch, Ticket
from skerry.inference.engines.scatter import Located, Write, write
from skerry.inference.models.llama import Llama

logger = logging.getLogger(__name__)

Action = Callable[[Future[None]], None]
Read = Callable[[], Llama]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    read: Read
    version: int
    done: Future[None]


class Worker:
    """Owns the model.  `weights` guards its parameters against readers in other threads."""

    def __init__(self, *, threads: int | None, max_sequences: int, put: Write) -> None:
        self.weights = threading.Lock()
        self.model: Llama | None = None
        self.version: int | None = None
        self.unusable = EngineError("no version is loaded")  # why, while there is no model
        self._threads = threads
        self._max_sequences = max_sequences
        self._put = put
        self._batch: Batch | None = None
        self._paused = False
        self._undo: tuple[int, tuple[Located, ...]] | None = None  # what the last install was from
        self._closed = False
        self._wake = threading.Condition()
        self._commands: deque[tuple[Action, Future[None]]] = deque()
        self._waiting: deque[Ticket] = deque()
        self._load: _Load | None = None
        self._thread = threading.Thread(target=self._run, name="skerry-engine", daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Queue a request; its tokens, or an error, are delivered from the worker's thread."""
        with self._wake:
            if self._closed:
                raise _closed()
            self._waiting.append(ticket)
            self._wake.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request before its next token."""
        with self._wake:
            ticket.cancelled = True
            self._wake.notify()

    def pause(self) -> Future[None]:
        return self._command(_settled(lambda: self._set_paused(True)))

    def resume(self) -> Future[None]:
        return self._command(_settled(lambda: self._set_paused(False)))

    def load(self, read: Read, version: int) -> Future[None]:
        """Let the running requests end, even in a pause, then replace the model by what is read."""
        return self._command(
            lambda done: self._set_load(_Load(read=read, version=version, done=done))
        )

    def install(self, located: tuple[Located, ...], version: int) -> Future[None]:
        return self._command(_settled(lambda: self._install(located, version)))

    def undo(self, base: int, version: int) -> Future[None]:
        return self._command(_settled(lambda: self._take_back(base, version)))

    def close(self) -> None:
        """End every request with an error and the thread with it."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _command(self, action: Action) -> Future[None]:
        """Run `action` between two passes; it settles the future, at once or later."""
        done: Future[None] = Future()
        with self._wake:
            if self._closed:
                raise _closed()
            self._commands.append((action, done))
            self._wake.notify()
        return done

    # Everything below runs in the worker's thread.

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # counts for the calling thread
        while self._turn():
            pass
        self._fail_all(_closed())
        for _, done in self._commands:
            if done.set_running_or_notify_cancel():
                done.set_exception(_closed())
        if self._load is not None:
            self._load.done.set_exception(_closed())

    def _turn(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._commands or self._has_work())
            if self._closed:
                return False
            command = self._commands.popleft() if self._commands else None
        if command is not None:
            action, done = command
            if done.set_running_or_notify_cancel():
                action(done)
            return True
        try:
            self._pass()
        except Exception as error:  # a failed pass must not leave its requests waiting for ever
            logger.exception("forward pass failed")
            self._fail_all(EngineError(f"forward pass failed: {error}"))
        return True

    def _has_work(self) -> bool:
        if self._load is not None:
            return True
        if self._paused and self.model is not None:
            return any(ticket.cancelled for ticket in self._waiting)
        return bool(self._waiting or self._batch)

    def _pass(self) -> None:
        """Do one thing: read a prompt, make tokens, or load."""
        with self._wake:  # requests arrive and are cancelled in other threads
            self._waiting = deque(t for t in self._waiting if not t.cancelled)
        batch, version = self._batch, self.version
        if self._load is not None and not batch:
            self._replace_model(self._load)
        elif batch is None or version is None:
            self._fail_all(self.unusable)
        elif self._paused and self._load is None:
            return
        elif self._load is None and self._waiting and not batch.full:
            batch.start(self._waiting.popleft(), version)
        else:
            batch.step(version)

    def _set_paused(self, paused: bool) -> None:
        if paused != self._paused:
            logger.info("%s at version %s", "paused" if paused else "resumed", self.version)
        self._paused = paused
        if not paused:
            self._undo = None

    def _set_load(self, load: _Load) -> None:
        if self._load is not None:
            load.done.set_exception(EngineError("another load is under way"))
        else:
            self._load = load

    def _replace_model(self, load: _Load) -> None:
        self._load = None
        with self.weights:
            self._undo = None
            self._batch = self.model = self.version = None  # free them before reading anew
            try:
                self.model = load.read()
            except Exception as error:  # whatever it was, there are no weights now
                logger.error("version %d not loaded: %s", load.version, error)
                self.unusable = EngineBroken(f"version {load.version} not loaded: {error}")
                self.unusable.__cause__ = error
                load.done.set_exception(self.unusable)
                return
            self.version = load.version
            self._batch = Batch(self.model, max_sequences=self._max_sequences)
        logger.info("loaded version %d", load.version)
        load.done.set_result(None)

    def _install(self, located: tuple[Located, ...], version: int) -> None:
        if not self._paused or self.version is None:
            raise InstallFailed("weights are only written between pause and resume")
        base = self.version
        self._write(located, version)
        self._undo = base, tuple(changes.reversed() for changes in located)
        logger.info("installed version %d over %d", version, base)

    def _take_back(self, base: int, version: int) -> None:
        if self._undo is None or (base, version) != (self._undo[0], self.version):
            raise InstallFailed(f"the install of version {version} cannot be undone any more")
        (_, located), self._undo = self._undo, None
        self._write(located, base)
        logger.info("version %d undone, back at %d", version, base)

    def _write(self, located: tuple[Located, ...], version: int) -> None:
        with self.weights:
            try:
                write(located, self._put)
            except EngineBroken as error:
                logger.error("weights are broken: %s", error)
                self.model = self.version = None
                self.unusable = error
                self._fail_all(error)
                self._batch = None
                raise
            self.version = version

    def _fail_all(self, error: EngineError) -> None:
        if self._batch is not None:
            self._batch.abort(error)
        with self._wake:
            waiting, self._waiting = self._waiting, deque()
        for ticket in waiting:
            ticket.deliver(error)


def _closed() -> EngineError:
    return EngineError("the engine is closed")


def _settled(action: Callable[[], None]) -> Action:
    """Return a command that settles its future as soon as `action` returns or raises."""

    def run(done: Future[None]) -> None:
        try:
            action()
        except Exception as error:  # handed to whoever waits for the command
            done.set_exception(error)
        else:
            done.set_result(None)

    return run
