"""What goes wrong, in words for the person whose query fails."""

from __future__ import annotations


class SealogError(Exception):
    """A query cannot go on; the message says why and what to do."""


class OptionError(SealogError, ValueError):
    """An option that does not exist, does not fit, or contradicts another."""


class DataLossError(SealogError):
    """Records that should be read are gone, or a topic or partition with them."""
