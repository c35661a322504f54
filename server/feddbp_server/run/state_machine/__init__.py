"""A run as a pure state machine: an event and the time go in, a new state and effects come out.

    WAITING --all joined, or join window over with quorum--> COLLECTING(r)
    COLLECTING(r) --all in, or deadline with quorum--> AGGREGATING(r) --> COLLECTING(r+1)
    ... --> EVALUATING --all reported, or deadline--> FINISHED
    any --> PAUSED, FAILED(reason), STOPPED(reason)

Members are the clients that take part in a round: those that joined and neither left nor missed a deadline while
disconnected. A client that crashes and reconnects in time stays a member, so a short absence changes no result.
"""
