"""How worker processes begin: forked from the program, forked from a server, or spawned."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any

from feedline.workers.auto import held_open
from feedline.workers.channel import MOST_FDS, Channel, Closed
from feedline.workers.child import WANTED, Worker, start
from feedline.workers.failure import WorkerError
from feedline.workers.job import Job
from feedline.workers.launch import enter_fork, fork, how_it_ended, launch, modules_of, not_to_fork
from feedline.workers.parcel import Store
from feedline.workers.process import Process
from feedline.workers.server import Server
from feedline.workers.shared_memory import OnlyByFork


class Starter:
    """Starts workers of one job."""

    def __init__(self, job: Job, base_seed: int, method: str, made: list[Any] | None) -> None:
        self.job, self._base_seed, self._method = job, base_seed, method
        # Samples that forks of the program have by birth, until it is set to None.
        self.made = made
        # What the other workers are given, and what job it is of.
        self._store = Store()
        self._stored: Job | None = None
        self._only_by_fork: str | None = None

    def renew(self, job: Job, base_seed: int) -> bool:
        """Another job from now on; the one before stays where this one cannot be sent."""
        before = self.job, self._base_seed
        self.job, self._base_seed = job, base_seed
        try:
            return self.prepare()
        except BaseException:
            self.job, self._base_seed = before
            raise

    def prepare(self) -> bool:
        """Makes ready what workers are started with; returns whether they are forks of the program."""
        if self._method in ("default", "fork"):
            reason = None
            if self._method == "default" and self._only_by_fork is None:
                reason = held_open(self.job.dataset)
                reason = not_to_fork() if reason is None else f"the data set holds {reason}"
                if not self.job.torch:
                    # A generator, read once, is the program's; only torch's users expect a copy.
                    reason = "its loader does not fork the program"
            if reason is None:
                return True
            self._pack(reason)
        else:
            self._pack(None)
        return self._only_by_fork is not None

    def _pack(self, reason: str | None) -> None:
        if self._stored is self.job:
            return
        try:
            self._store.pack(self.job)
        except OnlyByFork as error:
            if self._method != "default":
                raise WorkerError(
                    f"the data set holds {error}, which workers that are started by {self._method!r} cannot "
                    f"share; make it with multiprocessing.get_context({self._method!r})"
                ) from error
            # As torch's workers, which are forks of the program in any case.
            self._only_by_fork = str(error)
        except Exception as error:
            advice = 'or use executor="threads"' if self.job.kind == "map" else ""
            if reason is not None and self.job.torch:
                advice = f'use multiprocessing_context="fork" (here {reason}), {advice}'.rstrip(", ")
            raise WorkerError(
                f"the data set cannot be sent to worker processes ({type(error).__name__}: {error}); "
                f"make what it holds picklable, open files in the worker, {advice}".rstrip(", ")
            ) from error
        else:
            self._stored = self.job

    def start(self, number: int, wanted: int, forks: bool | None = None) -> Process:
        """A new worker, which makes no task before `wanted`."""
        if forks is None:
            forks = self.prepare()
        channel, theirs = Channel.pair()
        process = Process(number, channel)
        process.status[WANTED] = wanted
        try:
            if forks:
                self._fork(process, theirs)
            elif self._method == "spawn":
                self._spawn(process, theirs)
            else:
                self._ask_server(process, theirs)
        finally:
            theirs.close()
        if not forks:
            self.give_job(process)
        return process

    def _spawn(self, process: Process, theirs: socket.socket) -> None:
        process.spawned = launch("from feedline.workers.child import main; main", theirs)
        process.pid = process.spawned.pid

    def _ask_server(self, process: Process, theirs: socket.socket) -> None:
        modules = modules_of(self.job)
        for again in (True, False):
            server = Server.get()
            try:
                server.load(modules)
                if server.threads > 1:
                    # A module that it imported has started threads, which a fork would not survive.
                    self._spawn(process, theirs)
                else:
                    process.server, process.token = server, server.fork(theirs)
                return
            except Closed:
                code = server.ended
                server.replace()
                if not again:
                    whom = f"the process that workers are forked from (pid {server.process})"
                    raise WorkerError(
                        f"{whom} {how_it_ended(code)} twice",
                        pid=server.process,
                        exit_code=code,
                    ) from None

    def give_job(self, process: Process) -> None:
        around = {
            "path": list(sys.path),
            "argv": list(sys.argv),
            "environ": dict(os.environ),
            "folder": os.getcwd(),
        }
        process.ready, process.drawn = False, 0
        with contextlib.suppress(Closed):
            shared = self._store.shared.fds
            for at in range(0, len(shared), MOST_FDS):
                process.channel.post(("carry",), tuple(shared[at : at + MOST_FDS]))
            message = ("job", self._store.parcel, process.number, self._base_seed, around)
            process.channel.post(message, (process.page.fd, *self._store.files))

    def _fork(self, process: Process, theirs: socket.socket) -> None:
        pid = fork()
        if pid:
            process.pid, process.forked, process.made = pid, True, self.made
            return
        job, seed, page, made = self.job, self._base_seed, process.page, self.made

        def work(worker: Worker) -> None:
            enter_fork()
            worker.take_job(job, process.number, seed, page, made)

        start(theirs, work)

    def close(self) -> None:
        self._store.close()
