"""The folder that Ray makes of a job's working directory on each node: no place for a source."""

from __future__ import annotations

import os
import re

from raypack.errors import SourceError

# Ray 2.60 unpacks below <session>/runtime_resources/, on each node of the cluster by itself.
_UNPACKED = re.compile(r"(.*/runtime_resources/(?:working_dir_files|py_modules_files)/[^/]+)(?:/|$)")


def refuse_job_folder(path: str) -> None:
    """Refuse a source in the folder that Ray unpacked a job's working directory into.

    Each node has a copy of its own, under a name of this submission alone, and Ray deletes it after
    the job: what is written there no other node sees and no later job finds.

    Args:
        path: An absolute path; a URI names a store, and is never refused.

    Raises:
        SourceError: It lies there, by its name or by where its links lead.
    """
    if not os.path.isabs(path):
        return
    for name in (os.path.normpath(path), os.path.realpath(path)):
        match = _UNPACKED.match(name)
        if match is not None:
            raise SourceError(
                f"source {path} lies in the working directory of a Ray job ({match.group(1)}), which each "
                "node has its own copy of and Ray deletes after the job; give an absolute path on a file "
                "system that every node mounts, or a URI such as s3://bucket/source"
            )
