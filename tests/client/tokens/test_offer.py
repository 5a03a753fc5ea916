"""The key agreement: both ends derive the same keys and reject everything else."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.tokens.offer import TEXT_MAX

ENDPOINT = "tcp://127.0.0.1:9788"


def test_both_ends_get_the_same_keys():
    signer = penstock.new_signing_key()
    offer = penstock.StreamOffer("s1")
    answer = penstock.answer_offer(offer.text, ENDPOINT, signer=signer)
    assert offer.accept(answer.text, signer=signer.public) == answer.agreement
    assert (answer.agreement.stream_id, answer.agreement.endpoint) == ("s1", ENDPOINT)


def test_every_agreement_has_keys_of_its_own():
    answers = [penstock.answer_offer(penstock.StreamOffer().text, ENDPOINT, signer=None) for _ in range(2)]
    assert answers[0].agreement.keys.topic != answers[1].agreement.keys.topic


def test_an_answer_of_another_signer_is_rejected():
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, ENDPOINT, signer=penstock.new_signing_key())
    with pytest.raises(penstock.PenstockError):
        offer.accept(answer.text, signer=penstock.new_signing_key().public)


def test_an_answer_to_another_offer_is_rejected():
    signer = penstock.new_signing_key()
    mine, other = penstock.StreamOffer("mine"), penstock.StreamOffer("other")
    answer = penstock.answer_offer(other.text, ENDPOINT, signer=signer)
    with pytest.raises(penstock.PenstockError):
        mine.accept(answer.text, signer=signer.public)
    unsigned = penstock.answer_offer(other.text, ENDPOINT, signer=None)
    with pytest.raises(penstock.PenstockError, match="another stream"):
        mine.accept(unsigned.text, signer=None)


def test_a_plain_key_is_accepted_where_the_endpoint_is_known():
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer_with_key(offer.text, ENDPOINT)
    assert offer.accept_key(answer.text, ENDPOINT) == answer.agreement


@pytest.mark.parametrize("text", ["not base64!", "", "AAAA", "A" * (TEXT_MAX + 4)])
def test_other_texts_are_rejected_with_a_code(text):
    offer = penstock.StreamOffer()
    for read in (
        lambda: penstock.answer_offer(text, ENDPOINT, signer=None),
        lambda: offer.accept(text, signer=None),
        lambda: offer.accept_key(text, ENDPOINT),
    ):
        with pytest.raises(penstock.PenstockError) as caught:
            read()
        assert caught.value.code == "InvalidRequest"


def test_suites_do_not_mix():
    offer = penstock.StreamOffer(suite="blake3")
    answer = penstock.answer_offer(offer.text, ENDPOINT, signer=None)
    assert offer.accept(answer.text, signer=None).keys != answer.agreement.keys
