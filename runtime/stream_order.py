"""The order of a world's launches on torch's streams."""

from __future__ import annotations

import torch


class StreamOrder:
    """Launches of one world follow one another, whichever streams they are given to: they share its memory.

    Work goes to torch's current stream of the device. If that is another one than the last launch's, it first waits
    for that launch. While a stream is being captured into a graph nothing is added: order graphs yourself, as all
    work on shared memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: torch.cuda.Stream | None = None
        self._end = torch.cuda.Event()

    def capturing(self) -> bool:
        """Is the current stream being captured into a CUDA graph?"""
        return torch.cuda.is_current_stream_capturing()

    def enter(self) -> int:
        """The handle of the stream to launch on, in order after the last launch."""
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and stream != self._last and not self.capturing():
            stream.wait_event(self._end)
        return stream.cuda_stream

    def leave(self) -> None:
        """A launch was put on the current stream."""
        if not self.capturing():
            stream = torch.cuda.current_stream(self.device)
            self._end.record(stream)
            self._last = stream

    def wait(self) -> None:
        """Until all work on the device is done."""
        torch.cuda.synchronize(self.device)
