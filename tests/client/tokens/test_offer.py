"""The key agreement: both ends derive the same keys and reject everything else."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.tokens import answer_offer_with_key
from penstock.client.tokens.offer import TEXT_MAX
from tests.client.tokens.driving import KEY

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


class TestAgreeing:
    def test_both_ends_have_the_same_keys_and_each_offer_others(self) -> None:
        offers = [penstock.StreamOffer("s"), penstock.StreamOffer("s")]
        answers = [penstock.answer_offer(offer.text, "tcp://there:1", signer=KEY) for offer in offers]
        agreed = [o.accept(a.text, signer=KEY.public) for o, a in zip(offers, answers, strict=True)]
        assert [agreement.keys for agreement in agreed] == [answer.agreement.keys for answer in answers]
        assert agreed[0].keys.topic != agreed[1].keys.topic
        assert agreed[0].endpoint == "tcp://there:1"

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "keys are agreed on over Courier or a space, and a swapped key is rejected",
    )
    def test_an_answer_of_another_signer_is_rejected(self) -> None:
        """An intermediary could substitute its own key."""
        offer = penstock.StreamOffer("s")
        other = penstock.new_signing_key()
        for swapped in (
            penstock.answer_offer(offer.text, "tcp://there:1", signer=other),
            penstock.answer_offer(offer.text, "tcp://there:1", signer=None),
        ):
            with pytest.raises(penstock.PenstockError):
                offer.accept(swapped.text, signer=KEY.public)
        good = penstock.answer_offer(offer.text, "tcp://there:1", signer=KEY)
        with pytest.raises(penstock.PenstockError, match="another request"):
            penstock.StreamOffer("s").accept(good.text, signer=KEY.public)

    def test_over_a_trusted_way_no_signature_is_needed(self) -> None:
        offer = penstock.StreamOffer("s")
        plain = penstock.answer_offer(offer.text, "tcp://there:1", signer=None)
        assert offer.accept(plain.text, signer=None) == plain.agreement
        bare = answer_offer_with_key(offer.text, "tcp://there:1")
        assert offer.accept_key(bare.text, "tcp://there:1") == bare.agreement

    @pytest.mark.parametrize("text", ["", "?", "AAAA", "A" * 20_000])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(penstock.PenstockError):
            penstock.answer_offer(text, "tcp://there:1", signer=KEY)
        for signer in (None, KEY.public):
            with pytest.raises(penstock.PenstockError):
                penstock.StreamOffer("s").accept(text, signer=signer)
