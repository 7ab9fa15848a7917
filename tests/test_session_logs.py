"""The search of a run's logs finds what raypack survives, and knows what belongs to one entry."""

import json

from tests.support.session_logs import SUSPECT, entries_of

TRACEBACK = "Traceback (most recent call last)"
PLAIN = """\
first line
raypack's callback failed in after_report; the run goes on
Traceback (most recent call last):
  File "callback.py", line 3, in guarded
    hook(*arguments)
TypeError: after_report() got an unexpected keyword argument 'training_report'
a line after it
"""


def test_a_traceback_is_one_entry_with_the_line_before_it_and_its_error():
    entries = entries_of(PLAIN)
    assert [entry.splitlines()[0] for entry in entries] == [
        "first line",
        "raypack's callback failed in after_report; the run goes on",
        "a line after it",
    ]
    assert entries[1].endswith("keyword argument 'training_report'")
    assert [bool(SUSPECT.search(entry)) for entry in entries] == [False, True, False]


def test_an_error_of_raypack_in_a_file_of_json_is_suspect_and_one_of_ray_is_not():
    records = [
        {"levelname": "ERROR", "filename": "guards.py", "message": "the checkpoint is gone"},
        {"levelname": "ERROR", "filename": "controller.py", "message": "a worker died"},
        {"levelname": "INFO", "filename": "callback.py", "message": "verified"},
        {
            "levelname": "INFO",
            "filename": "a.py",
            "message": "b",
            "exc_text": "Traceback (most recent call last):",
        },
    ]
    entries = entries_of("\n".join(map(json.dumps, records)))
    assert [bool(SUSPECT.search(entry)) for entry in entries] == [True, False, False, True]
