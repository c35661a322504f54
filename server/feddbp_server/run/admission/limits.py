"""Every bound on what callers may make the server hold, do at once or wait for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits in force; those an operator may set are options in `LimitsConfig`, which makes this."""

    upload_bytes: int = 64 << 20
    """Most bytes of one upload."""
    uploads_at_once: int = 64
    """Most uploads that are received and stored at the same time; others get an answer to their header after that."""
    upload_wait: timedelta = timedelta(seconds=2)
    """How long the headers of further uploads wait while none of those that are received is stored; then more are
    admitted, up to `bytes_in_flight`."""
    bytes_in_flight: int = 512 << 20
    """Most bytes of all uploads that are being received, which bounds what they can make the server hold in memory.

    An upload takes up to three times its bytes: as pieces and as their join, or as that and widened to float32.
    """
    header_wait: timedelta = timedelta(seconds=10)
    """Longest wait for a request or an upload's header: until then the caller is unknown."""
    chunk_wait: timedelta = timedelta(seconds=30)
    """Longest wait for the next chunk of an upload."""
    discard_wait: timedelta = timedelta(seconds=1)
    """Longest wait for the next chunk of an upload that was refused; the rest of it is read and dropped, since a client
    that is cut off while it sends does not receive the reason."""
    discard_bytes: int = 256 << 20
    """Most bytes of a refused upload that are read and dropped: more than the largest upload that is admitted, since a
    larger one is refused, too."""
    discard_total: timedelta = timedelta(seconds=30)
    """Longest time in which the rest of one refused upload is read and dropped."""
    cached_upload_bytes: int = 256 << 20
    """Most bytes of uploads that are kept in memory until their round closes; others are read from the store."""

    sum_wait: timedelta = timedelta(seconds=30)
    """Longest wait for clients that are silent in a step of a secure sum, once others have answered."""
    sum_hold: timedelta = timedelta(seconds=5)
    """How long a client waits for a step of a secure sum before it is told to ask again; less than any client waits for
    an answer."""
    sum_steps_per_client: int = 4
    """Most calls of one client that wait for a step of a secure sum: one, and those of lost connections that were not
    noticed yet."""

    streams_per_session: int = 4
    """Most event streams of one session: one, and those of lost connections that were not noticed yet."""
    downloads_per_client: int = 4
    """Most downloads at the same time in all sessions of one client; each holds the bytes it sends."""
    joins_per_client: int = 8
    """Most joins of one client at the same time; they wait for each other."""
    joins_at_once: int = 256
    """Most joins of all clients at the same time; further ones are refused and told when to try again."""
    longest_join_retry: timedelta = timedelta(seconds=30)
    """Longest time after which a join that is refused because of `joins_at_once` is told to try again."""
    replies: int = 4
    """Most personal states that are computed at the same time, one for each client."""
    stalled_wait: timedelta = timedelta(seconds=30)
    """Longest wait for a caller to take the next message of a stream that is sent to it."""
    pushed_states: int = 32
    """Most states that are sent with events at the same time; further ones wait, or are left to be downloaded."""
    pushed_state_bytes: int = 1 << 20
    """Most bytes of a state that is sent with an event: a larger one would hold up the events after it."""
    pushed_state_wait: timedelta = timedelta(seconds=2)
    """How long further states wait while none of those that are sent with events is finished; then they are left to be
    downloaded."""
    status_watchers: int = 64
    """Most status streams of operators; each is sent the status of every client, again and again."""
    watched_events: int = 20_000
    """Most events that a watcher of the run has not read yet; a slower one has to watch again."""
    status_interval: timedelta = timedelta(seconds=0.1)
    """Shortest time between two messages of a status stream; changes in between are sent together."""

    disconnection_wait: timedelta = timedelta(seconds=1)
    """How long after the end of its event stream a client counts as lost, and after which a finished server logs for
    whom it waits."""

    lost_after: timedelta = timedelta(minutes=5)
    """How long a client is disconnected before the operator's command for events is started."""

    message_bytes: int = 384 << 10
    """Most bytes of one message, beside `bytes_per_class`: a chunk has 256 KiB, and all other messages are smaller but
    for those that list classes."""
    bytes_per_class: int = 12
    """Bytes by which a message may be larger for each class of the run, for its id and its number of samples."""
    request_bytes: int = 64 << 10
    """Most bytes of a single request, beside `bytes_per_class`: it has names and numbers only."""
    report_bytes: int = 192 << 10
    """Most bytes of a report, which may have `report_entries` names."""
    metadata_bytes: int = 16 << 10
    """Most bytes of a call's metadata, which hold a token at most."""
    streams_per_connection: int = 4096
    """Most concurrent calls of one connection: a client needs a handful, and one process may be a thousand clients."""

    pending_calls: int = 1000
    """Most calls that have arrived and were not begun yet, unless `pending_calls_per_client` allows more."""
    pending_calls_per_client: int = 4
    """Calls for each client of the run that may have arrived without being begun: all may call when a round opens."""

    name_characters: int = 256
    """Most characters of a name: of an architecture, a device, an inference rule or a loss term."""
    text_characters: int = 500
    """Most characters of a reason or cause; longer texts are cut off."""
    report_entries: int = 64
    """Most accuracies or loss terms in one report."""
    samples: int = 2**31 - 1
    """Most training or test samples that one client may declare."""
    reported_time: timedelta = timedelta(days=366)
    """Longest time that a client may report for one part of its round."""
    reported_bytes: int = 2**40
    """Most bytes that a client may report for one round: the sums over all clients and rounds stay within the status's
    integers."""

    incidents: int = 20
    """Number of the newest incidents in the status."""
    incidents_per_client: int = 3
    """Most incidents of one client in the status, so that no client can displace every other incident."""
    incidents_of_unauthenticated: int = 5
    """Most incidents in the status of all callers together that have not authenticated where others do."""
    audited_refusals: int = 100
    """Refusals of one caller, by its name or else its host, that are written to the audit log at once; further ones are
    only counted, or any caller could fill the disk."""
    audited_refusals_per_second: float = 0.1
    """Further refusals of one caller that are written to the audit log each second, on average."""
    audited_unauthenticated: int = 1000
    """Refusals of all callers together that have not authenticated that are written to the audit log at once; those of
    authenticated callers are counted apart."""
    audited_unauthenticated_per_second: float = 1.0
    """Further refusals of callers that have not authenticated that are written to the audit log each second."""
    audited_hosts: int = 1000
    """Most hosts whose refusals are limited by themselves in the audit log; those beyond share one limit."""
    audit_bytes: int = 16 << 20
    """Bytes of the audit log from which it is continued in a new file."""
    audit_files: int = 4
    """Older files of the audit log that are kept."""
    audited_client_events: int = 20
    """Events of one kind of one client that are written to the audit log at once; further ones are only counted."""
    audited_client_events_per_second: float = 0.1
    """Further events of one kind of one client that are written to the audit log each second, on average."""

    scrapes: int = 8
    """Most concurrent scrapes of the metrics, which need no authentication; each takes a thread."""
    scrape_turn: timedelta = timedelta(seconds=1)
    """Age from which a scrape is ended to make room for another one, when there are `scrapes` of them."""
    scrape_wait: timedelta = timedelta(seconds=10)
    """Longest wait for a scraper that sends or receives nothing."""
    collect_wait: timedelta = timedelta(seconds=5)
    """Longest wait for the event loop to collect the metrics of one scrape."""


DEFAULT_LIMITS: Final = Limits()
