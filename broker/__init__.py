"""The broker: server, request handlers, consumer groups, configuration and the command line.

The edge: asyncio, sockets and processes live here and nowhere below.
"""
