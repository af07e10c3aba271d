"""The answer to a read: rendered slice by slice, and held in the budget until its reader has taken it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from typing_extensions import override

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from agent.http.record_rendering import RecordsRendering
    from agent.read.fetch_memory import FetchMemory
    from agent.runtime.work_pool import WorkPool

_SENT_AT_ONCE = 64 * 1024  # about what the server buffers before it waits for the reader


class PendingResponse(Response):
    """Holds `fetched_bytes` of `budget` while it renders, then the size of the answer until that is sent.

    Rendering and sending are one call, so that whatever ends it (an error, a reader that leaves or stalls)
    lets go of the memory. Raises `BusyError` before anything is sent when the answer does not fit.
    """

    media_type = "application/json"

    def __init__(
        self, rendering: RecordsRendering, *, fetched_bytes: int, budget: FetchMemory, pool: WorkPool
    ) -> None:
        super().__init__()
        self._rendering: RecordsRendering | None = rendering
        self._fetched_bytes = fetched_bytes
        self._budget = budget
        self._pool = pool

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Render and send, piece by piece as the reader takes them."""
        with self._budget.holding(self._fetched_bytes):
            pieces = await self._render()
        size = sum(map(len, pieces))
        self.headers["content-length"] = str(size)
        with self._budget.holding_answer(size):
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            for piece in pieces:
                for start in range(0, len(piece), _SENT_AT_ONCE):
                    body = piece[start : start + _SENT_AT_ONCE]
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            # The server takes this once its buffer is short again.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _render(self) -> list[bytes]:
        rendering, self._rendering = self._rendering, None  # what was fetched goes when it is rendered
        assert rendering is not None
        while await self._pool.run(rendering.step):
            pass
        return rendering.pieces()
