"""A node of a cluster whose ranges have raft groups of their own (docs/raft.md, section 8).

records, assignment    what a range is, and who holds it        hosting     this node's ranges, as the records say
topics, view           what every node sees                     controller  what the metadata's leader does
node                   which handler answers where              member      one node without its sockets
"""
