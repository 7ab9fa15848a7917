"""What a rank says while it waits for others."""

from types import SimpleNamespace

import pytest

from raypack.actors import meeting_point
from raypack.actors.meeting_point import MeetingPoint


@pytest.mark.parametrize(("timeout_s", "told"), [(600.0, True), (15.0, False)])
def test_a_rank_that_waits_long_says_where_before_it_gives_up(monkeypatch, caplog, timeout_s, told):
    fake = SimpleNamespace(wait=lambda calls, timeout: ([], calls), get=lambda call, timeout: (["word"], []))
    monkeypatch.setattr(meeting_point, "ray", fake)
    actor = SimpleNamespace(meet=SimpleNamespace(remote=lambda *_: None))
    point = MeetingPoint(actor, 1)
    assert point.meet("topic", "word", timeout_s=timeout_s, what="report") == ["word"]
    message = "rank 1 still waits in report, which every rank must call; it ends after 600 s"
    assert (message in caplog.text) == told
