"""Figures, tables and the page about runs."""

from reluctant.report.page import report

__all__ = ["report"]
