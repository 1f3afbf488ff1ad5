"""What a trace-event file must be for Perfetto to show it as it is meant."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

KEYS = {
    "X": {"ph": str, "pid": int, "tid": int, "ts": float, "dur": float, "name": str, "cat": str, "args": dict},
    "M": {"ph": str, "pid": int, "tid": int, "name": str, "args": dict},
}
#: name of a metadata event -> type of its one argument
METADATA = {"process_name": str, "process_sort_index": int, "thread_name": str, "thread_sort_index": int}


def read_perfetto(path: Path) -> dict[str, Any]:
    """The document, after all that is checked here: keys and types, ids from 1, names of all tracks, times."""
    document = json.loads(path.read_text())
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    for event in document["traceEvents"]:
        keys = KEYS[event["ph"]]
        assert {name: type(value) for name, value in event.items()} == keys
        assert event["pid"] >= 1
        assert event["tid"] >= 1
        if event["ph"] == "M":
            (value,) = event["args"].values()
            assert type(value) is METADATA[event["name"]]
    check_tracks(document)
    return document


def complete_events(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that have a begin and a duration."""
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def track_names(document: dict[str, Any], what: str) -> dict[Any, str]:
    """``thread_name``: (pid, tid) -> name; ``process_name``: pid -> name. Each is named once."""
    named = [e for e in document["traceEvents"] if e["name"] == what and e["ph"] == "M"]
    ids = [(e["pid"], e["tid"]) if what == "thread_name" else e["pid"] for e in named]
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, (e["args"]["name"] for e in named), strict=True))


def check_tracks(document: dict[str, Any]) -> None:
    """On each track one event begins when the one before it is over, and tracks and processes have names."""
    tracks = defaultdict(list)
    for event in complete_events(document):
        tracks[event["pid"], event["tid"]].append(event)
    assert set(tracks) == set(track_names(document, "thread_name"))
    assert {pid for pid, _ in tracks} <= set(track_names(document, "process_name"))
    for events in tracks.values():
        end = 0
        for event in events:
            begin, duration = (round(event[name] * 1000) for name in ("ts", "dur"))
            assert duration >= 0
            assert begin >= end
            end = begin + duration
