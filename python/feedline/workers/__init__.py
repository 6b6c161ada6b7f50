"""User code in parallel.

    job = Job(dataset, "map", collate, stacks=True)         what a worker must know (job.py)
    executor = Processes(job, workers, prefetch, seed)      or Threads, or Inline (executor.py)
    executor.begin(Begin())                                 an epoch begins
    feed = Feed(executor, iter_of_tasks)                    keeps it busy, hands over in order
    task, result = feed.next()                              Result has value or error, and state

A `Task` names samples (`index` is whatever the data set is asked for), the number of its batch, and
the seed for the global generators of random, NumPy and torch while that batch is made: so what a
batch holds does not depend on who makes it. `auto.choose` picks an executor.

The rooms: `stack.py` writes samples into a batch row by row, in `slots.py`'s shared memory;
`packing.py` sends values between processes, arrays by reference; `child.py` is a worker process,
`launch.py` how it begins, `server.py` what it is forked from where the program should not be,
`parcel.py` and `shared_memory.py` how a data set gets there; `failure.py` brings exceptions home;
`torch_side.py` is all that knows torch.
"""

from feedline.workers.auto import Choice, choose
from feedline.workers.contest import Comparison, Contest
from feedline.workers.executor import Begin, Executor, Result
from feedline.workers.failure import WorkerError
from feedline.workers.feed import Feed
from feedline.workers.inline import Inline
from feedline.workers.job import Ended, Job, Maker, Task, Times, is_stateful
from feedline.workers.processes import Processes
from feedline.workers.reader import Reader
from feedline.workers.seeds import apart, mixed
from feedline.workers.stand_in import StandIn
from feedline.workers.threads import Threads

__all__ = [
    "Begin",
    "Choice",
    "Comparison",
    "Contest",
    "Ended",
    "Executor",
    "Feed",
    "Inline",
    "Job",
    "Maker",
    "Processes",
    "Reader",
    "Result",
    "StandIn",
    "Task",
    "Threads",
    "Times",
    "WorkerError",
    "apart",
    "choose",
    "is_stateful",
    "mixed",
]
