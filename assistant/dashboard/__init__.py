"""The operator's page: where the time of everybody's turns goes, and how busy the server is."""

from assistant.dashboard.service import Dashboard

__all__ = ["Dashboard"]
