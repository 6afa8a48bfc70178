"""Several brokers as one: their files replicated by a raft group, and the broker's node run by its leader.

ops          changes of files as entries of the log. Pure
tree         names of files and folders. Pure
store        the files of this node, as of what it has applied
disk         the leader's disk: changes it proposes, over what is committed
raft_log, hard_state       what raft must remember, in files
replica      this node's part in the group: applies, checkpoints, fetches a state
standby      what a node answers that does not lead
"""
