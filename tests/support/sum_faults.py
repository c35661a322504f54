"""Where either side of a secure sum is killed."""

from __future__ import annotations

SERVER_SUM_FAULTS = {
    "keys are stored but not answered": ("server.sum.taken", "server.sum.taken@4"),
    "the roster is stored but not told": ("server.sum.decided",),
    "shares are stored but not answered": ("server.sum.taken@8",),
    "those who share are stored but not told": ("server.sum.decided@2",),
    "the survivors are stored but not told": ("server.sum.decided@3",),
    "signatures are stored but not answered": ("server.sum.taken@13",),
    "reveals are stored but not answered": ("server.sum.taken@18",),
    "in the round in which prototypes are summed": ("server.sum.decided@6", "server.sum.taken@37"),
}
"""By step, where the server is killed; five clients, so that each step stores five messages."""
CLIENT_SUM_FAULTS = {
    "agreed to a roster, no shares given": ("client.sum.agreed", "client.sum.agreed@2"),
    "has its shares, nothing trained": ("client.sum.shared@2",),
    "agreed to survivors, nothing signed": ("client.sum.signed", "client.sum.signed@2"),
    "about to reveal": ("client.sum.revealing@2",),
}
"""By step, where client 0 is killed."""
