"""Consumer groups of the new protocol (KIP-848): the broker assigns, members reconcile one by one.

Start reading at `coordinator`. A member's way is in `member` and `reconcile`, the group's books in `group`, what
moves it on in `core`; `heartbeat` serves its members, `classic_members` and `migration` those of the old protocol.
"""
