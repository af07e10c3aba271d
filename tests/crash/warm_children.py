"""Loads the kernels in the fork server when it imports this module: its children inherit them.

An agent that loads them itself takes seconds longer to start, and a campaign restarts agents all the time.
"""

from __future__ import annotations

from agent.warm_up import warm_up

warm_up()
