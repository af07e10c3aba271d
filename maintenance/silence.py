"""Silent owners: sessions that are fenced, and job attempts whose jobs return to the queue.

An owner is marked first. It is fenced only if it stays silent after that (`catalog.lifecycle.reachability`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalog.open import Catalog
    from maintenance.report import MaintenanceReport
    from maintenance.settings import MaintenanceSettings


def fence_silent(catalog: Catalog, settings: MaintenanceSettings, report: MaintenanceReport) -> None:
    """Mark silent sessions, and fence those whose silence is confirmed."""
    fenced = catalog.sessions.fence_silent(settings.session_silence_ms, settings.fence_confirm_ms)
    report.fenced_sessions += len(fenced)


def release_silent_jobs(catalog: Catalog, settings: MaintenanceSettings, report: MaintenanceReport) -> None:
    """Mark silent job attempts, and return the jobs of those to the queue whose silence is confirmed."""
    released = catalog.jobs.release_expired(settings.job_silence_ms, settings.fence_confirm_ms)
    report.released_jobs += len(released)
