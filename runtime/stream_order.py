"""The order of a world's work on torch's streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def raw_stream(device: torch.device) -> int:
    """Handle of torch's current stream of a device, without an object around it."""
    return torch._C._cuda_getCurrentRawStream(device.index)


class StreamOrder:
    """What a world puts on streams follows one another, whichever streams it is given to: launches, and the copies and
    fills that make its memory ready, share that memory.

    Work goes to torch's current stream of the device. If that is another one than the last turn's, it first waits for
    that turn. While a stream is being captured into a graph nothing is added: order graphs yourself, as all work on
    shared memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: torch.cuda.Stream | None = None
        self._end = torch.cuda.Event()
        self._lock = threading.RLock()
        self.in_capture = False  # is this turn's stream being captured into a CUDA graph?

    def capturing(self) -> bool:
        """Is the device's current stream being captured into a CUDA graph?"""
        if torch.cuda.current_device() == self.device.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def turn(self) -> Iterator[int]:
        """Whatever is put on the current stream in this block comes after all turns before; yields its handle.

        One thread at a time. A block that raises may have put something there too, so it ends like any other.
        """
        with self._lock:
            stream = self._current()
            self.in_capture = capturing = self.capturing()
            if self._last is not None and stream is not self._last and not capturing:
                stream.wait_event(self._end)
            try:
                yield stream.cuda_stream
            finally:
                if not capturing:
                    self._end.record(stream)
                    self._last = stream

    def _current(self) -> torch.cuda.Stream:
        """torch's current stream of the device; the last turn's object if it is the same one."""
        if self._last is not None and raw_stream(self.device) == self._last.cuda_stream:
            return self._last
        return torch.cuda.current_stream(self.device)

    def finish(self) -> None:
        """Until the last turn is done: memory that it used may go then. Nothing while a stream is being captured."""
        if self._last is not None and not self.capturing():
            self._end.synchronize()

    def wait(self) -> None:
        """Until all work on the device is done."""
        torch.cuda.synchronize(self.device)
