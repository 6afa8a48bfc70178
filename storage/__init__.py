"""Bytes on disk: the disk interface, segments, range logs, producer state, flushing and recovery.

Imports `wire` alone. Nothing here knows of transactions' outcomes; it stores batches and says what is
durable.
"""
