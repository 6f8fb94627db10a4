"""Results: records in a store, labelled arrays read from it, and claims about them. No torch."""

from normscope.results.claim import Claim, claims_table
from normscope.results.record import Record, State, record_key
from normscope.results.store import Store

__all__ = ["Claim", "Record", "State", "Store", "claims_table", "record_key"]
