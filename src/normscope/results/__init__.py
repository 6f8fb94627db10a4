"""Results: records in a store, labelled arrays read from it, and claims about them. No torch."""

from normscope.results.claim import VERDICTS, Claim, claims_table, combine_verdicts
from normscope.results.record import Record, State, record_key
from normscope.results.store import Store

__all__ = [
    "VERDICTS",
    "Claim",
    "Record",
    "State",
    "Store",
    "claims_table",
    "combine_verdicts",
    "record_key",
]
