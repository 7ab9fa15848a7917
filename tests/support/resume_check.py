"""The one check of resuming that every stateful class must pass: stop anywhere, go on as if nothing was."""

import json


def check_resume(make, advance, restore, *, prefetch=lambda worker: None):
    """Stop after every possible number of advances, restore, and compare all that comes later.

    Args:
        make: Returns a fresh worker: anything with ``state()``, whose record has to_dict and from_dict.
        advance: Takes a worker, commits its next output and returns that; None at the end.
        restore: Takes a record and returns a worker.
        prefetch: Takes a worker and runs ahead of what is committed, which no record may show.

    Returns:
        The number of outputs, so that a caller can see that something was checked.
    """
    whole = run(make(), advance)
    for stop in range(len(whole) + 1):
        worker = make()
        for expected in whole[:stop]:
            assert advance(worker) == expected
        before = worker.state()
        prefetch(worker)
        state = worker.state()
        assert state == before, "a record must not show what is issued and not committed"
        again = restore(through_json(state))
        assert again.state() == state
        assert run(again, advance) == whole[stop:]
    return len(whole)


def run(worker, advance):
    """All that is left of a worker, committed one by one."""
    outputs = []
    while (output := advance(worker)) is not None:
        outputs.append(output)
    return outputs


def through_json(state):
    """A record as it comes back from a file."""
    return type(state).from_dict(json.loads(json.dumps(state.to_dict())))
