"""What lies ready in a DataLoader's queue: batches that its workers have made and the loop has not fetched yet."""

from __future__ import annotations

from .types import LoaderIterator, WorkersIterator


def ready_batches(iterator: LoaderIterator | None, *, anew: bool = False) -> int | None:
    """Batches that lie ready; None without workers, and once an epoch's last batches have been asked for.

    None as well while a queue that begins ``anew`` fills: what an epoch's first batches leave in it, its last ones use
    up unseen. By the time that as many have been taken as it holds, it is as long as the loader can keep it.

    By PyTorch's own bookkeeping (2.4 to 2.13): a task is a batch that was asked for. As long as there are more to ask
    for, as many are on their way as workers and ``prefetch_factor`` allow. What came out of turn lies with its task,
    the rest in the queue of results, and in a second one where a thread pins memory.
    """
    if not isinstance(iterator, WorkersIterator):
        return None
    try:
        capacity = iterator._prefetch_factor * iterator._num_workers
        if iterator._send_idx - iterator._rcvd_idx < capacity or (anew and iterator._rcvd_idx < capacity):
            return None
        queues = {id(queue): queue for queue in (iterator._worker_result_queue, iterator._data_queue)}
        out_of_turn = sum(len(task) > 1 for task in list(iterator._task_info.values()))
        return out_of_turn + sum(queue.qsize() for queue in queues.values())
    except (AttributeError, TypeError, NotImplementedError, OSError, RuntimeError):
        return None  # another version's bookkeeping, a system without qsize, workers that ended, a thread that fetches
