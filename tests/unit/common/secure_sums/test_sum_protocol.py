"""Secure sums: exact for those who follow the protocol, refused or noise for those who do not."""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums.client import SumClient
from feddbp_common.secure_sums.digests import SumContext
from feddbp_common.secure_sums.fixed_point import Words, from_fixed, to_fixed
from feddbp_common.secure_sums.identity import Signer, Verifier
from feddbp_common.secure_sums.messages import Advertisement, Reveal
from feddbp_common.secure_sums.server import Secrets, check_reveal, unmasked_sum
from feddbp_lab.pki.certificates import Authority

CLIENTS, LENGTH = 7, 50
CONTEXT = SumContext(run_id="run", round=3, config_sha256=bytes(32), state_sha256=bytes(32))


@dataclass
class Party:
    """Certificates of all clients, and a client's vector and secret by id."""

    certs: Path
    verifier: Verifier
    roots: dict[int, bytes] = field(default_factory=lambda: {n: secrets.token_bytes(32) for n in range(CLIENTS)})

    def signer(self, client_id: int) -> Signer:
        name = f"client-{client_id}"
        return Signer.load((self.certs / f"{name}.pem").read_bytes(), (self.certs / f"{name}.key").read_bytes())

    def client(self, client_id: int, context: SumContext = CONTEXT) -> SumClient:
        return SumClient(
            client_id=client_id, root=self.roots[client_id], context=context, signer=self.signer(client_id)
        )


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    for client_id in range(CLIENTS):
        authority.issue_party(f"client-{client_id}")
    return directory


@pytest.fixture
def party(certs: Path) -> Party:
    return Party(certs, Verifier((certs / "ca.pem").read_bytes()))


def vector(client_id: int) -> Words:
    return to_fixed(np.random.default_rng(client_id).normal(size=LENGTH).astype(np.float32), parties=CLIENTS)


class Sum:
    """A sum in which some clients are lost before or after they gave their shares."""

    def __init__(self, party: Party, *, roster: Iterable[int] = range(CLIENTS), without_shares: Iterable[int] = ()):
        self.clients = {number: party.client(number) for number in roster}
        self.advertised = [client.advertisement() for client in self.clients.values()]
        self.rosters = {
            number: client.roster(self.advertised, party.verifier) for number, client in self.clients.items()
        }
        self.roster = next(iter(self.rosters.values()))
        self.sharing = frozenset(self.clients) - frozenset(without_shares)
        sent = {number: self.clients[number].shares(self.rosters[number]) for number in self.sharing}
        self.received = {
            number: {peer: sent[peer][number] for peer in self.sharing if peer != number} for number in self.sharing
        }

    def masked(self, client_id: int) -> Words:
        return self.clients[client_id].masked(vector(client_id), self.roster, self.received[client_id])

    def signature(self, client_id: int, survivors: frozenset[int]) -> bytes:
        return self.clients[client_id].sign_survivors(self.roster, self.received[client_id], survivors)

    def reveal(self, client_id: int, survivors: frozenset[int], signers: Iterable[int]) -> Reveal:
        signatures = {number: self.signature(number, survivors) for number in signers}
        return self.clients[client_id].reveal(self.roster, self.received[client_id], survivors, signatures)

    def total(self, survivors: frozenset[int], revealing: Iterable[int] | None = None) -> Words:
        revealing = survivors if revealing is None else revealing
        reveals = {number: self.reveal(number, survivors, survivors) for number in revealing}
        for number, reveal in reveals.items():
            check_reveal(reveal, client_id=number, sharing=self.sharing, survivors=survivors)
        return self.opened([self.masked(number) for number in sorted(survivors)], survivors, reveals)

    def opened(self, vectors: Iterable[Words], survivors: frozenset[int], reveals: Mapping[int, Reveal]) -> Words:
        secrets = Secrets.rebuilt(roster=self.roster, sharing=self.sharing, survivors=survivors, reveals=reveals)
        return unmasked_sum(vectors, roster=self.roster, sharing=self.sharing, secrets=secrets)


def plain(clients: Iterable[int]) -> Words:
    total: Words = np.sum([vector(number) for number in clients], axis=0, dtype=np.uint64)
    return total


def test_the_sum_is_that_of_the_plain_vectors_to_the_bit(party: Party) -> None:
    everyone = frozenset(range(CLIENTS))
    total = Sum(party).total(everyone)
    np.testing.assert_array_equal(total, plain(everyone))
    means = np.mean([from_fixed(vector(number)) for number in everyone], axis=0)
    np.testing.assert_allclose(from_fixed(total) / CLIENTS, means, rtol=0, atol=2**-32)


@pytest.mark.parametrize("lost", [n for size in (1, 2) for n in itertools.combinations(range(CLIENTS), size)][::4])
def test_clients_lost_after_their_shares_are_left_out_exactly(party: Party, lost: tuple[int, ...]) -> None:
    survivors = frozenset(range(CLIENTS)) - set(lost)
    assert len(survivors) >= Sum(party).roster.threshold
    np.testing.assert_array_equal(Sum(party).total(survivors), plain(survivors))


def test_clients_lost_before_their_shares_have_no_part_in_the_masks(party: Party) -> None:
    run = Sum(party, without_shares=[2])
    survivors = frozenset({0, 1, 3, 4, 5})
    np.testing.assert_array_equal(run.total(survivors), plain(survivors))


def test_the_threshold_of_reveals_is_enough_and_one_fewer_is_not(party: Party) -> None:
    run, everyone = Sum(party), frozenset(range(CLIENTS))
    assert run.roster.threshold == 5
    np.testing.assert_array_equal(run.total(everyone, [1, 2, 4, 5, 6]), plain(everyone))
    with pytest.raises(ProtocolViolationError, match="4 clients revealed shares; 5 have to"):
        run.total(everyone, [1, 2, 4, 5])


def test_below_the_threshold_of_survivors_nobody_signs(party: Party) -> None:
    with pytest.raises(ProtocolViolationError, match="4 vectors arrived; 5 have to"):
        Sum(party).signature(0, frozenset({0, 1, 2, 3}))


def test_a_client_that_starts_again_sends_the_same_bytes(party: Party) -> None:
    one, again = Sum(party), Sum(party)
    parts = [item.signed_part(CONTEXT) for item in one.advertised]
    assert parts == [item.signed_part(CONTEXT) for item in again.advertised]
    assert one.received == again.received
    np.testing.assert_array_equal(one.masked(3), again.masked(3))


def test_a_masked_vector_says_nothing_of_the_vector(party: Party) -> None:
    """Under other secrets the same vector is another, and neither is near the plain one."""
    other = replace(party, roots={n: secrets.token_bytes(32) for n in range(CLIENTS)})
    one, two = Sum(party).masked(3), Sum(other).masked(3)
    assert not np.any(one == two)
    assert not np.any(one == vector(3))
    assert np.abs(from_fixed(one)).max() > 1e6


def test_another_round_has_other_masks(party: Party) -> None:
    first = Sum(party).masked(0)
    later = replace(CONTEXT, round=4)
    clients = {n: party.client(n, later) for n in range(CLIENTS)}
    advertised = [client.advertisement() for client in clients.values()]
    roster = clients[0].roster(advertised, party.verifier)
    sent = {n: client.shares(roster) for n, client in clients.items()}
    received = {n: sent[n][0] for n in range(1, CLIENTS)}
    assert not np.any(clients[0].masked(vector(0), roster, received) == first)


# --- hostile servers and members


def test_a_server_that_shows_clients_different_states_is_refused(party: Party) -> None:
    other = party.client(1, replace(CONTEXT, state_sha256=bytes([1]) * 32))
    advertised = [other.advertisement() if n == 1 else party.client(n).advertisement() for n in range(CLIENTS)]
    with pytest.raises(ProtocolViolationError, match="signature of client 1's keys does not fit"):
        party.client(0).roster(advertised, party.verifier)


def test_masks_of_clients_with_different_views_of_who_shared_do_not_cancel(party: Party) -> None:
    run, everyone = Sum(party), frozenset(range(CLIENTS))
    fewer = {peer: share for peer, share in run.received[0].items() if peer != 6}
    split = run.clients[0].masked(vector(0), run.roster, fewer)
    vectors = [split, *(run.masked(number) for number in range(1, CLIENTS))]
    reveals = {number: run.reveal(number, everyone, everyone) for number in everyone}
    total = run.opened(vectors, everyone, reveals)
    assert not np.any(total == plain(everyone))


@pytest.mark.parametrize("change", ["share_key", "mask_key", "seed_digest", "client_id"])
def test_keys_that_were_changed_on_the_way_are_refused(party: Party, change: str) -> None:
    advertised = Sum(party).advertised
    forged: dict[str, object] = {change: 6 if change == "client_id" else bytes(32)}
    advertised[2] = replace(advertised[2], **forged)  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolationError):
        party.client(0).roster(advertised, party.verifier)


def test_keys_of_an_earlier_attempt_are_refused(party: Party) -> None:
    earlier = party.client(2, replace(CONTEXT, round=2)).advertisement()
    advertised = [earlier if item.client_id == 2 else item for item in Sum(party).advertised]
    with pytest.raises(ProtocolViolationError, match="signature of client 2's keys does not fit"):
        party.client(0).roster(advertised, party.verifier)


def test_certificates_that_our_authority_did_not_issue_are_refused(party: Party, tmp_path: Path) -> None:
    foreign = Authority.create(tmp_path)
    foreign.issue_party("client-2")
    forged = SumClient(
        client_id=2,
        root=secrets.token_bytes(32),
        context=CONTEXT,
        signer=Signer.load((tmp_path / "client-2.pem").read_bytes(), (tmp_path / "client-2.key").read_bytes()),
    ).advertisement()
    advertised = [forged if item.client_id == 2 else item for item in Sum(party).advertised]
    with pytest.raises(ProtocolViolationError, match="certificate given for client-2 is not from our authority"):
        party.client(0).roster(advertised, party.verifier)


def test_a_member_cannot_take_part_as_another(party: Party) -> None:
    client = SumClient(client_id=2, root=secrets.token_bytes(32), context=CONTEXT, signer=party.signer(3))
    advertised = [client.advertisement() if item.client_id == 2 else item for item in Sum(party).advertised]
    with pytest.raises(ProtocolViolationError, match="given for client-2 is that of client-3"):
        party.client(0).roster(advertised, party.verifier)


def test_an_expired_certificate_is_refused(party: Party, certs: Path, tmp_path: Path) -> None:
    authority = Authority.load(certs)
    old = Authority(tmp_path, authority.key, authority.certificate)
    old.issue_party("client-2", lifetime=timedelta(seconds=-1))
    signer = Signer.load((tmp_path / "client-2.pem").read_bytes(), (tmp_path / "client-2.key").read_bytes())
    expired = SumClient(client_id=2, root=party.roots[2], context=CONTEXT, signer=signer).advertisement()
    advertised = [expired if item.client_id == 2 else item for item in Sum(party).advertised]
    with pytest.raises(ProtocolViolationError, match="certificate of client-2 is not valid today"):
        party.client(0).roster(advertised, party.verifier)


def test_a_roster_of_few_clients_is_refused(party: Party) -> None:
    with pytest.raises(ProtocolViolationError, match="a sum over 4 clients; it takes 5 to 128"):
        Sum(party, roster=range(4))


def test_a_client_refuses_a_roster_with_other_keys_of_its_own(party: Party) -> None:
    other = replace(party, roots={**party.roots, 0: secrets.token_bytes(32)})
    with pytest.raises(ProtocolViolationError, match="does not have the keys of client 0 as it sent them"):
        party.client(0).roster(Sum(other).advertised, party.verifier)


def test_two_sets_of_survivors_cannot_both_be_revealed(party: Party) -> None:
    """A server that tells some clients one set and others another has too few signatures for either."""
    run = Sum(party)
    one, other = frozenset(range(6)), frozenset(range(1, 7))
    with pytest.raises(ProtocolViolationError, match="3 clients signed the survivors; 5 have to"):
        run.reveal(0, one, [0, 1, 2])
    mixed = {n: run.signature(n, one if n < 3 else other) for n in range(6)}
    with pytest.raises(ProtocolViolationError, match="signature of client 3's survivors does not fit"):
        run.clients[0].reveal(run.roster, run.received[0], one, mixed)


def test_shares_that_were_changed_on_the_way_are_noticed_before_anything_depends_on_them(party: Party) -> None:
    run = Sum(party)
    run.received[0][4] = run.received[0][4][:-1] + bytes([run.received[0][4][-1] ^ 1])
    with pytest.raises(ProtocolViolationError, match="shares of client 4 cannot be opened"):
        run.masked(0)


@pytest.mark.parametrize("kind", ["mask_key", "share_key"])
def test_a_signed_key_that_gives_everybody_the_same_secret_is_refused(party: Party, kind: str) -> None:
    own = party.client(4).advertisement()
    degenerate = replace(own, mask_key=bytes(32)) if kind == "mask_key" else replace(own, share_key=bytes(32))
    signed = replace(degenerate, signature=party.signer(4).sign(degenerate.signed_part(CONTEXT)))
    advertised = [signed if n == 4 else party.client(n).advertisement() for n in range(CLIENTS)]
    with pytest.raises(ProtocolViolationError, match="a public key of client 4 cannot be used"):
        party.client(0).roster(advertised, party.verifier)


def lying(reveal: Reveal) -> Reveal:
    return replace(reveal, seeds={client: share ^ 1 for client, share in reveal.seeds.items()})


@pytest.mark.parametrize("liars", [{0}, {3}, {6}, {0, 1}, {2, 5}])
def test_wrong_shares_are_left_out_as_long_as_enough_others_reveal(party: Party, liars: set[int]) -> None:
    run, everyone = Sum(party), frozenset(range(CLIENTS))
    reveals = {number: run.reveal(number, everyone, everyone) for number in everyone}
    reveals |= {number: lying(reveals[number]) for number in liars}
    vectors = [run.masked(number) for number in everyone]
    assert np.array_equal(run.opened(vectors, everyone, reveals), plain(everyone))


def test_too_many_wrong_shares_give_no_sum_and_blame_nobody(party: Party) -> None:
    run, everyone = Sum(party), frozenset(range(CLIENTS))
    reveals = {number: run.reveal(number, everyone, everyone) for number in everyone}
    reveals |= {number: lying(reveals[number]) for number in (0, 1, 2)}
    with pytest.raises(ProtocolViolationError, match="shares that clients revealed do not fit together"):
        run.opened([run.masked(number) for number in everyone], everyone, reveals)


def test_a_certificate_of_no_known_version_is_refused(party: Party) -> None:
    own = party.client(4).advertisement()
    body = base64.b64decode(b"".join(own.certificate.splitlines()[1:-1]))
    version = body.index(bytes.fromhex("a003020102"))  # version 3
    changed = base64.encodebytes(body[: version + 4] + bytes([18]) + body[version + 5 :])
    pem = b"-----BEGIN CERTIFICATE-----\n" + changed + b"-----END CERTIFICATE-----\n"
    advertised = [replace(own, certificate=pem) if n == 4 else party.client(n).advertisement() for n in range(CLIENTS)]
    with pytest.raises(ProtocolViolationError, match="certificate given for client-4 is not from our authority"):
        party.client(0).roster(advertised, party.verifier)


def test_a_server_that_gives_clients_different_configurations_is_refused(party: Party) -> None:
    other = party.client(1, replace(CONTEXT, config_sha256=bytes([1]) * 32))
    advertised = [other.advertisement() if n == 1 else party.client(n).advertisement() for n in range(CLIENTS)]
    with pytest.raises(ProtocolViolationError, match="signature of client 1's keys does not fit"):
        party.client(0).roster(advertised, party.verifier)


def test_a_roster_of_fewer_clients_than_the_run_promises_is_refused(party: Party) -> None:
    advertised = [party.client(number).advertisement() for number in range(6)]
    party.client(0).roster(advertised, party.verifier, least=6)
    with pytest.raises(ProtocolViolationError, match="a sum over 6 clients; it takes 7 to 128"):
        party.client(0).roster(advertised, party.verifier, least=7)


def test_a_reveal_never_has_both_kinds_of_share_for_one_client(party: Party) -> None:
    run, survivors = Sum(party), frozenset(range(CLIENTS)) - {6}
    reveal = run.reveal(0, survivors, survivors)
    assert reveal.seeds.keys() == survivors
    assert reveal.mask_keys.keys() == {6}
    with pytest.raises(ProtocolViolationError, match="client 0 revealed shares that were not asked for"):
        check_reveal(
            Reveal(seeds={**reveal.seeds, 6: 1}, mask_keys=reveal.mask_keys),
            client_id=0,
            sharing=run.sharing,
            survivors=survivors,
        )


def test_an_advertisement_holds_no_secret(party: Party) -> None:
    item: Advertisement = party.client(0).advertisement()
    public = b"".join(value for value in vars(item).values() if isinstance(value, bytes))
    assert party.roots[0] not in public
