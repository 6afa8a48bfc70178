"""The Kafka protocol as bytes: framing, the API table, codecs and record batches.

No sockets, no state beyond one connection's byte stream, and no import of any other package of the project.
"""
