"""Transactions: the metadata store, the coordinator, the transaction buffer and pending offsets.

Imports `storage` and `wire`. State machines are plain classes; the store's log is the only I/O.
"""
