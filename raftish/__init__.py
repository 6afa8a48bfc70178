"""Raft: many replicated logs on few nodes. docs/raft.md is its contract on one page.

    entries, messages, membership     what the core speaks of
    log, progress, reads              parts of the core
    leadership, core                  the state machine: no I/O, no clock, no randomness

Imports nothing of the other packages: what a log is, and where it is kept, is handed in.
"""
