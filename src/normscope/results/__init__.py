"""Results: records in a store, labelled arrays read from it, and claims about them. No torch.

A store is one SQLite file of records, written by one process and read by many. Its contract:

**Records.** A record is the result of one call of an experiment, identified by experiment,
parameters, seed, revision of the experiment and version of the package; the key is a hash of these
five. Adding it twice is adding it once. Its states:

    pending -> running -> finished | diverged      (results: never changed again)
       ^          |-----> failed -> running        (the next attempt)
       '----------'  interrupted

**Ownership.** At most one `Store` at a time may write a file, across processes and threads; a
second one raises an error that names the first's process. The right is an operating-system lock on
the file ``<path>-lock`` and ends with the process. Within the process all threads may use the
store. It cannot be sent to another process: workers hand their results to the parent, or open the
file to read.

**Durability.** Every call that changes the store is one transaction, on the disk when the call
returns (SQLite's WAL, synchronous=FULL): a crash of the process or of the machine loses nothing
that was reported. `append` makes each chunk of steps durable by itself; `finish` replaces the
chunks by the whole result and sets the state in the same transaction. `transaction` groups calls.

**After a crash.** At most the call under way is lost. Records that were running are pending again
when the next writer opens the file, with their attempts and chunks; readers see them as running
until then. Ctrl-C inside `compute` has the same effect at once. Chunks of an interrupted or failed
attempt can be read until the record is started again.

**Readers.** Any number of processes may open the file with ``read_only=True`` while it is written.
Each call sees the last committed state; the dataset of a running record is its chunks so far.
Reading changes no record, and works in a read-only folder unless a crash left a log to recover.

**Format.** Arrays are zlib-compressed npy blobs, everything else is strict JSON; nothing is
pickled, so reading a file cannot run code. A dataset is restored bit for bit: dimensions,
coordinates, variables, dtypes, byte order, NaN payloads, attributes; not its ``encoding``, and
strings held as objects become fixed-width strings. Every dataset has a checksum bound to its
record, and every record is checked against its key: damage raises `DataError`. A file of another
schema or program is refused unchanged.

**Hostile files.** A file may be forged, with right checksums. Only a file with exactly the tables
of a store is read; only arrays of plain values, unpacked to no more than their declared shape; a
query that takes far more steps than the file has bytes is stopped. All else raises `DataError`.

**Lost files.** Before each call the open file is compared with its path: if it was deleted, moved
or replaced, a `StateError` is raised before more work is lost. The file ``<path>-lock`` keeps how
many records were written. If a killed writer left more of them than can be read, since its log
(``<path>-wal``) is damaged or gone, opening the file warns how many (`NormscopeWarning`).
"""

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
