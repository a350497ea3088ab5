"""The rules of the protocol, each of them a switch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Rules:
    """The rules of the scheduler's functions. A test turns one off and expects a violation."""

    #: The names of leases never repeat, even if the record was deleted in between.
    names_never_repeat: bool = True
    #: `acquire` and `park` drop a copy with another serial than the valid ones.
    copies_are_checked: bool = True
    #: The start of a copy makes all other serials stale.
    a_start_makes_others_stale: bool = True
    #: `sent` without the claimed lease of its name changes nothing.
    late_sent_is_a_no_op: bool = True
    #: A promoted copy is checked at the gate, so it is rejected during a pause or a cool-down.
    promotions_are_checked_again: bool = True
    #: A copy that comes to a gate ends its promotion lease and its reservation in the same call.
    arrival_ends_the_promotion: bool = True
    #: A copy that comes to a gate deletes the waiting or claimed record of its tag.
    arrival_ends_the_record: bool = True
    #: `park` looks at the limits again, and blocks no lane whose limits are open.
    park_asks_limits_again: bool = True
    #: An outcome leaves no published serial valid.
    an_outcome_makes_serials_stale: bool = True
    #: A task that was claimed expires again when its record is back.
    promotion_is_no_start: bool = True
    #: A promotion lease counts as a slot.
    promotions_count_as_slots: bool = True
    #: A promoter that lives does not renew its promotion leases.
    promotions_are_not_renewed: bool = True
    #: A start of a rate is counted at the gate, not at the claim.
    rates_count_at_arrival: bool = True
    #: A reservation takes a start of the rate from all other tasks.
    reservations_count: bool = True
    #: The end of a promotion lease ends its reservation.
    reservations_end_with_the_lease: bool = True
    #: Each end of a lease wakes the lanes at its keys.
    each_end_wakes: bool = True
    #: A lane that only a reservation blocks has a timer too, because a start may take its place.
    a_reservation_is_timed: bool = True
    #: A repeated `acquire` of the same attempt is granted.
    own_lease_first: bool = True
    #: The end of a body does not delete a waiting record of its tag. Its result is not stored yet.
    done_withdraws_nothing: bool = True

    def without(self, name: str) -> Rules:
        """Return these rules without one of them."""
        return replace(self, **{name: False})


NAMES = tuple(field.name for field in fields(Rules))
