"""Results that last: records in a store, labelled arrays from it, and claims about them."""

from normscope.results.claim import Claim, claims_table
from normscope.results.identity import record_key
from normscope.results.record import Record, State
from normscope.results.store import Store

__all__ = ["Claim", "Record", "State", "Store", "claims_table", "record_key"]
