from __future__ import annotations

from datetime import timedelta

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.sessions import Session, Sessions

LEASE = 30.0


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(lease=timedelta(seconds=LEASE))


def request(client_id: int = 3, *, previous: str = "") -> pb.JoinRequest:
    return pb.JoinRequest(
        client_id=client_id,
        previous_session=previous,
        data=pb.DataSummary(label_counts=[1, 0, 4], test_samples=9),
        capabilities=pb.Capabilities(architecture="resnet18", parameters=11, device="cpu", software_version="1"),
    )


def join(sessions: Sessions, client_id: int = 3, *, previous: str = "", now: float = 0.0) -> tuple[Session, str]:
    client, secret = sessions.prepare_join(request(client_id, previous=previous), now)
    sessions.join(client)
    return client, secret


def assert_in_use(sessions: Sessions, *, previous: str = "", now: float) -> None:
    with pytest.raises(RefusedError) as refusal:
        sessions.prepare_join(request(previous=previous), now)
    assert refusal.value.details.reason == pb.REFUSAL_REASON_ID_IN_USE
    assert "client 3 is in use by another daemon" in str(refusal.value)


def assert_stale(sessions: Sessions, secret: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        sessions.resolve(secret)
    assert refusal.value.details.reason == pb.REFUSAL_REASON_STALE_SESSION


def test_a_secret_resolves_to_its_session(sessions: Sessions) -> None:
    client, secret = join(sessions)
    assert sessions.resolve(secret) is client
    assert sessions.get(3) is client
    assert sessions.is_current(client)
    assert (client.client_id, client.epoch, client.data.test_samples) == (3, 1, 9)


@pytest.mark.parametrize("secret", ["", "guess", "é" * 1000])
def test_no_other_secret_opens_a_session(sessions: Sessions, secret: str) -> None:
    join(sessions)
    assert_stale(sessions, secret)


def test_secrets_are_long_and_never_the_same(sessions: Sessions) -> None:
    secrets = {join(sessions, client)[1] for client in range(50)}
    assert len(secrets) == 50
    assert min(map(len, secrets)) >= 32


def test_only_the_hash_of_a_secret_is_stored(sessions: Sessions) -> None:
    client, secret = join(sessions)
    record = client.record()
    assert secret.encode() not in record.session_sha256 + record.data + record.capabilities
    assert len(record.session_sha256) == 32


def test_a_prepared_session_is_not_in_force(sessions: Sessions) -> None:
    client, secret = sessions.prepare_join(request(), 0.0)
    assert_stale(sessions, secret)
    assert not sessions.is_current(client)
    assert sessions.all() == []


def test_preparing_a_join_leaves_the_previous_session_in_force(sessions: Sessions) -> None:
    first, secret = join(sessions)
    sessions.prepare_join(request(previous=secret), 1.0)
    assert sessions.resolve(secret) is first


def test_clients_are_listed_by_id(sessions: Sessions) -> None:
    for client in (5, 0, 3):
        join(sessions, client)
    assert [client.client_id for client in sessions.all()] == [0, 3, 5]
    assert sessions.get(4) is None


# --- one live daemon per id ---


def test_a_second_daemon_is_refused_while_the_first_follows(sessions: Sessions) -> None:
    client, _ = join(sessions)
    client.streams = 1
    assert_in_use(sessions, now=10**9)


def test_a_second_daemon_is_refused_until_the_lease_ends(sessions: Sessions) -> None:
    join(sessions, now=100.0)
    assert_in_use(sessions, now=100.0)
    assert_in_use(sessions, now=100.0 + LEASE - 0.001)
    client, _ = join(sessions, now=100.0 + LEASE)
    assert client.epoch == 2


def test_the_lease_runs_from_the_last_sign_of_life(sessions: Sessions) -> None:
    client, _ = join(sessions, now=0.0)
    client.last_seen = 50.0
    assert_in_use(sessions, now=LEASE + 1)
    join(sessions, now=50.0 + LEASE)


@pytest.mark.parametrize("streams", [0, 1, 3])
def test_a_daemon_that_joins_with_its_previous_session_supersedes_it_at_once(sessions: Sessions, streams: int) -> None:
    first, secret = join(sessions)
    first.streams = streams
    second, _ = join(sessions, previous=secret, now=0.1)
    assert sessions.get(3) is second
    assert second.epoch == first.epoch + 1


@pytest.mark.parametrize("previous", ["wrong", " "])
def test_another_previous_session_does_not_help(sessions: Sessions, previous: str) -> None:
    join(sessions)
    assert_in_use(sessions, previous=previous, now=1.0)


def test_a_session_of_another_client_does_not_help(sessions: Sessions) -> None:
    join(sessions, 3)
    _, of_another = join(sessions, 4)
    assert_in_use(sessions, previous=of_another, now=1.0)


def test_a_session_older_than_the_previous_one_does_not_help(sessions: Sessions) -> None:
    _, first = join(sessions)
    join(sessions, previous=first, now=1.0)
    assert_in_use(sessions, previous=first, now=2.0)


# --- fencing ---


def test_a_superseded_session_is_fenced_off(sessions: Sessions) -> None:
    first, old_secret = join(sessions)
    second, new_secret = join(sessions, previous=old_secret)
    assert not sessions.is_current(first)
    assert sessions.is_current(second)
    assert_stale(sessions, old_secret)
    assert sessions.resolve(new_secret) is second


def test_epochs_grow_with_every_join_of_an_id(sessions: Sessions) -> None:
    secret, epochs = "", []
    for _ in range(4):
        client, secret = join(sessions, previous=secret)
        epochs.append(client.epoch)
    assert epochs == [1, 2, 3, 4]
    assert join(sessions, 8)[0].epoch == 1


# --- leaving ---


def test_an_id_is_free_at_once_after_its_session_is_closed(sessions: Sessions) -> None:
    client, secret = join(sessions)
    sessions.leave(client)
    assert_stale(sessions, secret)
    again, _ = join(sessions, now=0.1)
    assert again.epoch == 2


def test_leaving_under_a_superseded_session_does_not_affect_the_current_one(sessions: Sessions) -> None:
    first, old_secret = join(sessions)
    second, new_secret = join(sessions, previous=old_secret)
    sessions.leave(first)
    assert sessions.resolve(new_secret) is second
    assert_in_use(sessions, now=0.1)


# --- restarts ---


def restarted(sessions: Sessions, now: float) -> Sessions:
    records = [client.record() if sessions.is_current(client) else client.closed_record() for client in sessions.all()]
    after = Sessions(lease=sessions.lease)
    after.restore(records, now)
    return after


def test_a_session_survives_a_restart_of_the_server(sessions: Sessions) -> None:
    before, secret = join(sessions)
    after = restarted(sessions, now=1000.0).resolve(secret)
    assert (after.client_id, after.epoch, after.data, after.capabilities) == (
        before.client_id,
        before.epoch,
        before.data,
        before.capabilities,
    )
    assert after.streams == 0


def test_a_client_that_left_has_no_session_after_a_restart_and_its_id_is_free(sessions: Sessions) -> None:
    client, secret = join(sessions)
    sessions.leave(client)
    after = restarted(sessions, now=1000.0)
    assert_stale(after, secret)
    assert_stale(after, "")
    assert [known.client_id for known in after.all()] == [client.client_id]
    again, _ = join(after, now=1000.0)
    assert again.epoch == 2


def test_after_a_restart_the_id_stays_reserved_for_a_lease(sessions: Sessions) -> None:
    join(sessions, now=0.0)
    after = restarted(sessions, now=1000.0)
    assert_in_use(after, now=1000.0 + LEASE - 1)
    join(after, now=1000.0 + LEASE)


def test_after_a_restart_a_daemon_joins_with_its_session_under_the_next_epoch(sessions: Sessions) -> None:
    _, secret = join(sessions)
    after = restarted(sessions, now=1000.0)
    client, _ = join(after, previous=secret, now=1000.0)
    assert client.epoch == 2
    assert_stale(after, secret)
